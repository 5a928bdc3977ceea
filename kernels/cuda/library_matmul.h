// Matrix products of many rows by NVIDIA's cuBLASLt, where it is installed. It is opened at start
// and not linked: half a gigabyte that must not be a condition for starting. Without it our own
// kernels do the same; the device's description says which.
//
// Algorithms: the first time that a shape is met (rows of x rounded up to a power of two), those
// that the library proposes are timed on the device, and the best is kept. That step takes some
// milliseconds longer. All products share one workspace: none may overlap another. Sources: cuBLAS
// documentation, "Using the cuBLASLt API". Thread-safety: none.
#pragma once

#include <memory>
#include <string>

#include "kernels/cuda/params.h"
#include "kernels/cuda/runtime.h"

namespace heddle::kernels::cuda {

class LibraryMatmul {
 public:
  // nullptr without the library. Takes kWorkspaceBytes of the device's memory.
  static std::unique_ptr<LibraryMatmul> Open(Runtime& runtime);
  virtual ~LibraryMatmul() = default;

  // For start-up lines: "cuBLASLt 13.0.2".
  virtual std::string name() const = 0;

  // Enqueues out = x W^T, or out += x W^T for kAdd; BF16, out F32 if out_f32. Biases, activations
  // and kGated are the caller's to apply. REQUIRES: layout kBF16, alignment as LaunchLinearTiled.
  // False: it has no algorithm for that; nothing was enqueued.
  virtual bool Multiply(const LinearParams& params, Stream stream) = 0;

  // Leaves so many multiprocessors to others; 0: none. For all products from now on.
  virtual void SpareMultiprocessors(int32_t count) = 0;

  // What NVIDIA recommends on sm_90.
  static constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;
};

}  // namespace heddle::kernels::cuda
