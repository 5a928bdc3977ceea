#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/copy_page.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/cpuid.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/level_tables.h"
#include "kernels/cpu/linear/cpu_weight.h"
#include "kernels/cpu/linear/experts.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/usable_cpus.h"
#include "kernels/device.h"
#include "kernels/host_memory.h"

namespace heddle::kernels {
namespace {

using cpu::Isa;

constexpr int32_t kMaxThreads = 1024;

// Mentions threads beyond the number of CPUs: they take turns, and each op waits for the last.
std::string ThreadsText(int32_t num_threads) {
  const int32_t cpus = cpu::FindUsableCpus().num_cpus;
  std::string text = absl::StrCat(num_threads, num_threads == 1 ? " thread" : " threads");
  if (num_threads > cpus) {
    absl::StrAppend(&text, ", WARNING: more than the ", cpus, cpus == 1 ? " CPU" : " CPUs",
                    " that this process may use");
  }
  return text;
}

class CpuDevice final : public Device {
 public:
  CpuDevice(Isa isa, const cpu::CpuFeatures& features, int32_t num_threads, bool pin)
      : description_(absl::StrCat("cpu (", cpu::Name(isa), " of ", cpu::Describe(features), "; ",
                                  ThreadsText(num_threads), ")")),
        isa_(isa),
        table_(cpu::TableFor(isa)),
        pool_(num_threads, pin),
        ops_(table_, pool_) {}

  std::string description() const override { return description_; }
  DType activation_dtype() const override { return DType::kF32; }
  bool HasKvType(DType) const override { return true; }
  DType preferred_kv_type() const override {
    return isa_ >= Isa::kAvx512Bf16 ? DType::kBF16 : DType::kF16;
  }

  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(int64_t bytes) override {
    return AllocateHost(bytes, "buffer");
  }

  absl::StatusOr<std::unique_ptr<PackedWeight>> Pack(
      std::span<const WeightSource> sources) override {
    HEDDLE_ASSIGN_OR_RETURN(auto weight, cpu::CpuWeight::Pack(sources, *table_.linear, pool_));
    return std::unique_ptr<PackedWeight>(std::move(weight));
  }

  absl::StatusOr<std::unique_ptr<PackedStack>> PackStack(std::span<const WeightSource> sources,
                                                         int32_t count) override {
    HEDDLE_ASSIGN_OR_RETURN(auto stack, cpu::CpuStack::Pack(sources, count, *table_.linear, pool_));
    return std::unique_ptr<PackedStack>(std::move(stack));
  }

  absl::Status JoinGroup(std::shared_ptr<Communicator> communicator) override {
    ops_.JoinGroup(std::move(communicator));
    return absl::OkStatus();
  }

  absl::Status JoinStages(std::shared_ptr<Communicator> stages) override {
    ops_.JoinStages(std::move(stages));
    return absl::OkStatus();
  }

  bool samples_by_rejection() const override { return true; }
  absl::Status Plan(const HostBatch& batch) override { return ops_.Plan(batch); }

  absl::Status Run(const std::function<void(Ops&)>& body) override {
    body(ops_);
    return absl::OkStatus();
  }

  void CopyPage(const KvCacheView& cache, int32_t from, int32_t to, int32_t num_tokens) override {
    CopyHostPage(cache, from, to, num_tokens);
  }

 private:
  const std::string description_;
  const Isa isa_;
  const cpu::KernelTable table_;
  cpu::ThreadPool pool_;
  cpu::CpuOps ops_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> CreateCpuDevice(const CpuDeviceOptions& options) {
  cpu::CpuFeatures features = cpu::DetectCpuFeatures();
  HEDDLE_ASSIGN_OR_RETURN(Isa isa, cpu::ResolveIsa(options.isa, features));
  if (options.num_threads < 0 || options.num_threads > kMaxThreads) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cpu device: ", options.num_threads, " threads; valid are 0 (all cores) to ", kMaxThreads));
  }
  const int32_t threads =
      options.num_threads == 0 ? cpu::FindUsableCpus().num_cores : options.num_threads;
  return std::make_unique<CpuDevice>(isa, features, threads, options.pin_threads);
}

}  // namespace heddle::kernels
