// The bytes that are counted of a rank's share are those that the loader packs of it.
#include "engine/model/share_bytes.h"

#include <memory>
#include <optional>
#include <string>

#include "catch2/catch.hpp"
#include "engine/model/load.h"
#include "engine/model/load_ranks.h"
#include "engine/model/weights.h"
#include "tests/support/goldens.h"
#include "tests/support/synthetic_model.h"
#include "tests/support/temp_dir.h"

namespace heddle::engine {
namespace {

using kernels::DType;
using kernels::WeightSource;

// Counts what is packed and allocated, in the types that it comes in.
class CountingDevice final : public kernels::Device {
 public:
  // `unpacks`: it has memory of its own, and keeps matrices whose columns have an order as floats.
  explicit CountingDevice(bool unpacks = false) : unpacks_(unpacks) {}

  std::optional<kernels::DeviceMemory> memory() const override {
    if (!unpacks_) return std::nullopt;
    return kernels::DeviceMemory();
  }
  std::string description() const override { return device_->description(); }
  DType activation_dtype() const override { return device_->activation_dtype(); }
  absl::StatusOr<std::unique_ptr<kernels::Buffer>> Allocate(int64_t bytes) override {
    bytes_ += bytes;
    return device_->Allocate(bytes);
  }
  absl::StatusOr<std::unique_ptr<kernels::PackedWeight>> Pack(
      std::span<const WeightSource> sources) override {
    Count(sources);
    return device_->Pack(sources);
  }
  absl::StatusOr<std::unique_ptr<kernels::PackedStack>> PackStack(
      std::span<const WeightSource> sources, int32_t count) override {
    Count(sources);
    return device_->PackStack(sources, count);
  }
  absl::Status Plan(const kernels::HostBatch&) override { return absl::OkStatus(); }
  absl::Status Run(const std::function<void(kernels::Ops&)>&) override { return absl::OkStatus(); }
  void CopyPage(const kernels::KvCacheView&, int32_t, int32_t, int32_t) override {}

  int64_t bytes() const { return bytes_; }

 private:
  void Count(std::span<const WeightSource> sources) {
    for (const WeightSource& source : sources) {
      const bool is_unpacked = unpacks_ && !source.column_order.empty();
      bytes_ += source.rows *
                kernels::RowBytes(is_unpacked ? activation_dtype() : source.dtype, source.cols);
    }
  }

  const bool unpacks_;
  std::unique_ptr<kernels::Device> device_ = kernels::CreateReferenceDevice();
  int64_t bytes_ = 0;
};

TEST_CASE("The bytes of a share are those that the loader takes for it", "[golden]") {
  const std::string name = GENERATE(from_range(test::GoldenNames()));
  test::TempDir dir;
  const std::filesystem::path path = test::WriteGoldenModel(test::LoadGolden(name), dir.path());
  auto checkpoint = OpenCheckpoint(path);
  REQUIRE(checkpoint.ok());
  auto model = Describe(*checkpoint);
  REQUIRE(model.ok());
  for (const std::string weights : {"auto", "int8"}) {
    auto policy = ParseWeightPolicy(weights);
    REQUIRE(policy.ok());
    const CutBlocks blocks = CutBlocksOf(*checkpoint, *model, *policy);
    const Layout layouts[] = {{.tp = 1},
                              {.tp = 2},
                              {.tp = 3},
                              {.tp = 5},
                              {.pp = 3},
                              {.tp = 2, .pp = 2},
                              {.tp = 3, .expert_parallel = true}};
    for (const Layout& layout : layouts) {
      for (const Share& share : DivideModel(model->spec, layout, blocks)) {
        INFO(name << " with " << weights << ", rank " << share.rank << " of " << layout.tp
                  << " in stage " << share.stage << " of " << layout.pp);
        CountingDevice device;
        auto loaded = LoadWeights(device, *checkpoint, *model, *policy, share);
        INFO(loaded.status().ToString());
        REQUIRE(loaded.ok());
        CHECK(ShareBytes(*checkpoint, *model, *policy, share, nullptr) == device.bytes());
        if (name != "llama_gptq" && name != "mixtral_gptq") continue;
        CountingDevice unpacking(/*unpacks=*/true);
        REQUIRE(LoadWeights(unpacking, *checkpoint, *model, *policy, share).ok());
        CHECK(ShareBytes(*checkpoint, *model, *policy, share, &unpacking) == unpacking.bytes());
      }
    }
  }
}

TEST_CASE("What ranks are said to take of the pool is what they take", "[golden]") {
  const std::string name = GENERATE("llama", "gemma3", "deepseek_v3", "lfm2", "qwen3_next");
  test::TempDir dir;
  LoadOptions options;
  options.layout.tp = GENERATE(1, 3);
  options.layout.pp = options.layout.tp == 1 ? 3 : 1;
  options.cpu.num_threads = 3;
  options.capacity.kv_bytes = 4 << 20;
  options.capacity.max_batch_tokens = 64;
  auto model = LoadLocalModel(test::WriteGoldenModel(test::LoadGolden(name), dir.path()), options);
  INFO(model.status().ToString());
  REQUIRE(model.ok());
  REQUIRE(model->ranks.size() == 3);
  CHECK(model->ranks[0].page_bytes == model->executor->page_bytes());
  int64_t page_bytes = 0, kv_bytes = 0, per_token = 0;
  for (const RankMemory& rank : model->ranks) {
    page_bytes += rank.page_bytes;
    kv_bytes += rank.kv_bytes;
    per_token += rank.kv_bytes_per_token;
  }
  CHECK(page_bytes == model->capacity.page_bytes);
  CHECK(kv_bytes == model->capacity.kv_bytes);
  CHECK(per_token == model->capacity.kv_bytes_per_token);
}

}  // namespace
}  // namespace heddle::engine
