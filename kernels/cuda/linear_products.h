// Makes matrix products on the CUDA backend: chooses the kernels or the library, the number of
// pieces and the part of the workspace, and keeps the codes that one product leaves for the next.
// Belongs to one step. Thread-safety: none.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "kernels/cuda/device_step.h"
#include "kernels/cuda/linear/linear_params.h"
#include "kernels/ops.h"

namespace heddle::kernels::cuda {

// Ways to make one product.
using LinearWayList = absl::InlinedVector<LinearWay, 4>;

// Beyond five passes over the weights a kernel by bulk copies is not tried beside a library.
inline constexpr int64_t kMostBulkRows = 5 * kBulkBlockRows;

// Whether kernels can move the rows 16 bytes at a time.
inline bool IsAligned(const Tensor& x, int64_t element_bytes) {
  const int64_t width = 16 / element_bytes;
  return reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.stride % width == 0 &&
         x.cols % width == 0;
}

class LinearProducts {
 public:
  // `step` must outlive it.
  explicit LinearProducts(DeviceStep* step) : step_(*step) {}

  // Ops::Linear.
  void Linear(const LinearArgs& args);
  // Ops::ProjectHeads, where the kernel for few rows makes it; kv_slot [x.rows]. False: nothing was
  // launched.
  bool LinearOfHeads(const LinearArgs& args, const RopeKvWriteArgs& heads, const int64_t* kv_slot);
  // Whether the library multiplies the weight's 8-bit codes. Without one rows of x stay in BF16.
  bool TakesCodes(const DeviceWeight& weight) const;

 private:
  void Multiply(const LinearArgs& args, LinearParams params);
  void Norm(const NormArgs& args);
  // `scratch` is free for all of them; x is aligned and in BF16, except for the first two.
  bool IsFast(const LinearParams& params) const;  // not only LaunchLinearPlain takes it
  bool FoldsNorm(const LinearParams& params, const NormArgs& norm) const;
  void LinearWithAdapters(const LinearParams& params, const LinearArgs& args);
  // The way of this product; times the ways if necessary.
  LinearWay WayOf(const LinearParams& params, const Workspace& scratch);
  // The ways for n aligned rows of x in BF16, the predicted one first.
  LinearWayList WaysFor(const DeviceWeight& weight, int64_t n, const Workspace& scratch) const;
  LinearWay TimeWays(const LinearParams& params, const LinearWayList& ways,
                     const Workspace& scratch);
  void LinearBy(LinearWay way, const LinearParams& params, const Workspace& scratch);
  // Blocks of the product that share rows may add up in `scratch`.
  LinearParams Sharing(LinearParams params, const Workspace& scratch) const;
  void LinearFewRows(const LinearParams& params, const Workspace& scratch);
  void LinearDequantized(const LinearParams& params, const Workspace& scratch);
  bool IsByLibrary(const DeviceWeight& weight, const Workspace& scratch) const;
  void LinearByBulk(const LinearParams& params, const Workspace& scratch);
  // Multiplies BF16 weights by the library, or by our own kernels without one.
  void LinearManyRows(const LinearParams& params, const Workspace& scratch);
  // By the fastest of our own kernels for BF16 weights.
  void LinearByOurs(const LinearParams& params, const Workspace& scratch);
  void LinearByLibrary(const LinearParams& params, const Workspace& scratch);
  // The ways of products of codes, the predicted one first.
  LinearWayList WaysForCodes(const DeviceWeight& weight, int64_t n) const;
  // The way of a product of n rows if that uses codes.
  std::optional<LinearWay> CodesWay(const DeviceWeight& weight, int64_t n) const;
  void LinearByCodes(LinearWay way, const LinearArgs& args, LinearParams params);
  // The source of the codes of x.
  struct CodesOfX {
    const NormArgs* norm = nullptr;  // params.x is its result, not computed yet
    bool are_there = false;          // the present content counts as codes: for timing the product
  };
  void LinearByCodes(LinearWay way, const LinearParams& params, const CodesOfX& from,
                     const Workspace& scratch);
  void MakeCodes(const LinearParams& part, const std::optional<NormArgs>& norm, const CodeRows& x);
  bool NormsToCodes(const NormArgs& norm, const DeviceWeight& weight) const;
  void LinearOfCodes(const LinearParams& params, const CodeRows& x, const Workspace& scratch);
  void LinearWithoutCodes(const LinearParams& params, const Workspace& scratch);
  bool MultiplyCodes(LinearWay way, const LinearParams& params, const CodeRows& x,
                     const Workspace& scratch);
  // The codes in which the output is left for args.reader; codes == nullptr: the output is written.
  CodeRows LeaveCodes(const LinearArgs& args);
  // The codes that were left for this product.
  std::optional<CodeRows> TakeCodes(const LinearArgs& args);

  // Codes in the memory of a tensor, until the one product that reads them.
  struct LeftCodes {
    const void* tensor;
    const PackedWeight* reader;
    CodeRows codes;
  };

  DeviceStep& step_;
  std::vector<LeftCodes> left_;
};

}  // namespace heddle::kernels::cuda
