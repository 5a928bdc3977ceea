// Ops on the CUDA backend: checks shapes, chooses kernels, enqueues. Knows one step.
//
// The first failure is kept and ends the step: later ops do nothing (after a fault the device takes
// no more work anyway).
// Thread-safety: none.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "kernels/batch.h"
#include "kernels/cuda/attention/attention_params.h"
#include "kernels/cuda/attention/attention_plan.h"
#include "kernels/cuda/device_batch.h"
#include "kernels/cuda/linear/adapter_params.h"
#include "kernels/cuda/linear/expert_params.h"
#include "kernels/cuda/linear/library_matmul.h"
#include "kernels/cuda/linear/linear_params.h"
#include "kernels/cuda/linear/linear_ways.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/runtime/staging.h"
#include "kernels/ops.h"

namespace heddle::kernels::cuda {

// Device memory that ops use one after the other, in stream order: each only between its own
// launches.
struct Workspace {
  uint8_t* data = nullptr;
  int64_t bytes = 0;
};

// One for every 128 rows of a weight: of half a million.
inline constexpr int64_t kReductionCounters = 4096;

// Ways to make one product.
using LinearWayList = absl::InlinedVector<LinearWay, 4>;

// Rows that kernels can move 16 bytes at a time.
inline bool IsAligned(const Tensor& x, int64_t element_bytes) {
  const int64_t width = 16 / element_bytes;
  return reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.stride % width == 0 &&
         x.cols % width == 0;
}

// The plan of a step's attention, and where its parts lie on the device.
struct PlannedAttention {
  AttentionGrouping grouping;
  int32_t n_decode = 0, n_prefill = 0, n_merges = 0;
  const AttentionTile* decode = nullptr;
  const AttentionTile* prefill = nullptr;
  const AttentionMerge* merges = nullptr;
  const int32_t* shared_rows = nullptr;
  // See AttentionPlan. wide_of_span is that of span 0: spans before the first have no entry.
  int32_t prefill_rows = 0, decode_rows = 0;
  int32_t n_wide_pages = 0;
  const int32_t* wide_pages = nullptr;
  const int32_t* wide_of_span = nullptr;
};

// Results that a Sample call left on the device, and where the caller wants them.
struct PendingCopy {
  void* to;
  const void* from;
  int64_t bytes;
};

class CudaOps final : public Ops {
 public:
  struct Step {
    Runtime& runtime;
    DType activations;
    Stream stream;
    // All sequences, as each group of layers sees them: attention's tiles say which it means.
    std::span<const DeviceBatch> groups;
    int32_t first_row = 0;  // of the rows that tensors have
    int32_t n_rows = 0;
    Workspace workspace;
    Workspace drawn;              // the step's tokens, in the order of its draws
    Workspace results;            // what else sampling reports, kept until the end of the step
    int32_t* counters = nullptr;  // [kReductionCounters] zeros between ops
    DeviceAdapters adapters;      // of the whole batch
    Staging& staging;
    LibraryMatmul* library = nullptr;       // for products of many rows; nullptr: our own kernels
    bool always_dequantizes = false;        // CudaDeviceOptions
    LinearWays* ways = nullptr;             // that products go; nullptr: as predicted
    bool times_products = false;            // of shapes that `ways` has not met
    int32_t attention_multiprocessors = 0;  // that attention may fill; 0: all
    // Plans a grouping that the step has not met yet.
    std::function<absl::StatusOr<PlannedAttention>(const AttentionGrouping&)> plan_attention;
  };
  explicit CudaOps(const Step& step) : step_(step) {}

  void Embed(const PackedWeight& table, float scale, Tensor out) override;
  void AddPositions(const PackedWeight& table, int32_t offset, Tensor x) override;
  void Norm(const NormArgs& args) override;
  void Linear(const LinearArgs& args) override;
  void RopeAngles(const RopeAnglesArgs& args) override;
  void RopeKvWrite(const RopeKvWriteArgs& args) override;
  void Attention(const AttentionArgs& args) override;
  void Route(const RouteArgs& args) override;
  void ExpertMix(const ExpertMixArgs& args) override;
  void HeadLinear(const HeadLinearArgs& args) override;
  void GateRows(Tensor gate_f32, Tensor x) override;
  void GatherLogitRows(Tensor x, Tensor out) override;
  void ScaleLogits(Tensor logits_f32, float scale, float softcap) override;
  void Sample(const SampleArgs& args) override;

  const absl::Status& status() const { return status_; }
  // In the order of the calls; to be done after the stream was waited for.
  const std::vector<PendingCopy>& results() const { return pending_; }
  // Used of Step::drawn and Step::results.
  int64_t drawn_bytes() const { return drawn_used_; }
  int64_t result_bytes() const { return results_used_; }

 private:
  // The rows that tensors have, as a group of layers sees them.
  DeviceBatch Rows(int32_t group = 0) const;
  // The prefill tiles, on a copy of what they read.
  void AttendWide(AttentionParams params, const PlannedAttention& plan, int64_t wide_at,
                  int32_t multiprocessors);
  void Note(Error error, const char* op);
  void Note(const absl::Status& status);
  // All in cuda_ops_linear.cc and cuda_ops_codes.cc. `scratch` is free for them; x is aligned and
  // in BF16 but for the first two.
  bool IsFast(const LinearParams& params) const;  // not LaunchLinearPlain alone takes it
  bool FoldsNorm(const LinearParams& params, const NormArgs& norm) const;
  void LinearWithAdapters(const LinearParams& params, const AdapterMatrix& adapters);
  // How this product is to be made; times the ways if it has to.
  LinearWay WayOf(const LinearParams& params, const Workspace& scratch);
  // Those for n aligned rows of x in BF16, what is predicted first.
  LinearWayList WaysFor(const DeviceWeight& weight, int64_t n, const Workspace& scratch) const;
  LinearWay TimeWays(const LinearParams& params, const LinearWayList& ways,
                     const Workspace& scratch);
  void LinearBy(LinearWay way, const LinearParams& params, const Workspace& scratch);
  // Blocks of the product that share rows may add up in `scratch`.
  LinearParams Sharing(LinearParams params, const Workspace& scratch) const;
  int32_t FreeMultiprocessors() const;  // for products, beside the other half's attention
  void LinearFewRows(const LinearParams& params, const Workspace& scratch);
  void LinearDequantized(const LinearParams& params, const Workspace& scratch);
  bool IsByLibrary(const DeviceWeight& weight, const Workspace& scratch) const;
  void LinearByBulk(const LinearParams& params, const Workspace& scratch);
  // BF16 weights: by the library, or by what stands in for it.
  void LinearManyRows(const LinearParams& params, const Workspace& scratch);
  void LinearByLibrary(const LinearParams& params, const Workspace& scratch);
  // Whether the library takes its 8-bit codes.
  bool TakesCodes(const DeviceWeight& weight) const;
  // Whether a product of n rows goes that way.
  bool GoesByCodes(const DeviceWeight& weight, int64_t n) const;
  void LinearByCodes(const LinearArgs& args, LinearParams params);
  // Where the codes of x come from.
  struct CodesOfX {
    const NormArgs* norm = nullptr;  // params.x is what that leaves, and is not there yet
    bool are_there = false;          // or what is there is taken for them: for timing the product
  };
  void LinearByCodes(const LinearParams& params, const CodesOfX& from, const Workspace& scratch);
  bool NormsToCodes(const NormArgs& norm, const DeviceWeight& weight) const;
  void LinearOfCodes(const LinearParams& params, const CodeRows& x, const Workspace& scratch);
  void LinearWithoutCodes(const LinearParams& params, const Workspace& scratch);
  bool MultiplyCodes(const LinearParams& params, const CodeRows& x, const Workspace& scratch);
  // Where the output goes for args.reader; codes == nullptr: it does not.
  CodeRows LeaveCodes(const LinearArgs& args);
  // What was left for this product.
  std::optional<CodeRows> TakeCodes(const LinearArgs& args);
  ExpertGroups GroupExperts(const ExpertMixArgs& args);
  // Room for `bytes` of results in `from`, of which `*used` are taken, or nullptr and a status.
  uint8_t* TakeResults(const Workspace& from, int64_t bytes, int64_t* used);

  // Codes in the memory of a tensor, until the one product that reads them.
  struct LeftCodes {
    const void* tensor;
    const PackedWeight* reader;
    CodeRows codes;
  };

  Step step_;
  absl::Status status_;
  std::vector<LeftCodes> left_;
  std::vector<PendingCopy> pending_;
  int64_t drawn_used_ = 0;
  int64_t results_used_ = 0;
};

}  // namespace heddle::kernels::cuda
