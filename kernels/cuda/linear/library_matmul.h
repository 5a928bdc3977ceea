// Matrix products of many rows by NVIDIA's cuBLASLt, if it is installed. It is opened at start and
// not linked: its half gigabyte must not be a condition for starting. Without it our own kernels do
// the same; the device's description says which.
//
// Algorithms: when a shape is first met (rows of x up to the next of RowSteps), the library's
// proposals are timed on the device, and the best is kept. That step takes some milliseconds
// longer. All products share one workspace, so none may overlap another.
// Sources: cuBLAS documentation, "Using the cuBLASLt API".
// Thread-safety: none.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/cuda/linear/linear_params.h"
#include "kernels/cuda/runtime/runtime.h"

namespace heddle::kernels::cuda {

// x W^T from 8-bit codes of both: weights of kF8Row, kInt8Row or kF8Block, and rows of x quantised
// in the same order of columns. Products of E4M3 are exact and summed in F32, except for bits that
// the hardware drops: on sm_90 sums within the matrix instruction keep some 14 bits ("fast
// accumulation", as serving systems commonly run it; DeepSeek-AI 2024 measured up to 2 % on single
// sums of 4096). Sums of kF8Block continue in F32 after each kScaleTile columns. Products of
// integers are summed in int32.
struct CodeProduct {
  DeviceWeight weight;
  CodeRows x;
  int64_t n = 0;  // rows of x; kF8Block: a multiple of kTiledRows, and x.scales_stride
  Tensor out;     // [n, weight.rows]
  bool out_f32 = false;
  bool adds = false;  // adds to out
};

// Products of kF8Block take rows of x in multiples of this. cuBLAS's documentation requires
// multiples of 4; its kernels were observed to require 8 (NVIDIA's Transformer Engine).
inline constexpr int64_t kTiledRows = 8;

class LibraryMatmul {
 public:
  // Takes kWorkspaceBytes of the device's memory. If the library cannot be used, NOT_FOUND or
  // another error with the file's name and what is wrong with it.
  static absl::StatusOr<std::unique_ptr<LibraryMatmul>> Open(Runtime& runtime);
  virtual ~LibraryMatmul() = default;

  // The name for start-up lines: "cuBLASLt 13.0.2".
  virtual std::string name() const = 0;

  // Enqueues out = x W^T, or out += x W^T for kAdd; BF16, or F32 if out_f32. The caller applies
  // biases, activations and kGated. REQUIRES: layout kBF16, alignment as for LaunchLinearTiled.
  // Returns false, with nothing enqueued, if it has no algorithm for that.
  virtual bool Multiply(const LinearParams& params, Stream stream) = 0;

  // Whether this device has products of codes for such weights: kF8Row from sm_89 on, kF8Block on
  // sm_90 with cuBLAS 12.9, integers always; in all cases with rows in multiples of 16, as matrix
  // units require.
  virtual bool TakesCodes(const DeviceWeight& weight) const = 0;
  // Enqueues out = the product, with both scales applied; BF16, or F32 if out_f32. Returns false,
  // with nothing enqueued, if the library does not apply these scales here (it does for FP8 on
  // sm_90). REQUIRES for this and the next: TakesCodes.
  virtual bool MultiplyCodes(const CodeProduct& product, Stream stream) = 0;
  // Enqueues out = the sums of products of codes, F32 for kF8Row, int32 for kInt8Row; out_f32 and
  // adds are ignored. Returns false as Multiply does, and for kF8Block.
  virtual bool SumCodes(const CodeProduct& product, Stream stream) = 0;

  // Leaves `count` multiprocessors free in all later products; 0: none.
  virtual void SpareMultiprocessors(int32_t count) = 0;

  // NVIDIA's recommendation for sm_90.
  static constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;
};

}  // namespace heddle::kernels::cuda
