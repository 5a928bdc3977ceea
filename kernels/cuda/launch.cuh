// Starts a kernel on a stream, or in the emulator. Only for the launchers in .cu files.
#pragma once

#include "kernels/cuda/params.h"
#include "kernels/cuda/primitives.cuh"

namespace heddle::kernels::cuda {

struct LaunchShape {
  int grid_x = 1;
  int grid_y = 1;
  int grid_z = 1;
  int threads = 128;
  int shared_bytes = 0;
};

template <typename Params>
Error Launch(void (*kernel)(Params), const LaunchShape& shape, Stream stream,
             const Params& params) {
  if (shape.grid_x <= 0 || shape.grid_y <= 0 || shape.grid_z <= 0) return kSuccess;
#if defined(HEDDLE_CUDA_EMULATE)
  (void)stream;
  bool good = emulate::Launch({shape.grid_x, shape.grid_y, shape.grid_z}, shape.threads,
                              shape.shared_bytes, [&] { kernel(params); });
  return good ? kSuccess : kEmulatedFault;
#else
  // More than 48 KiB per block must be asked for, once per kernel; asking again is cheap.
  if (shape.shared_bytes > (48 << 10)) {
    cudaError_t error =
        cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, shape.shared_bytes);
    if (error != cudaSuccess) return static_cast<Error>(error);
  }
  dim3 grid(shape.grid_x, shape.grid_y, shape.grid_z);
  kernel<<<grid, shape.threads, shape.shared_bytes, static_cast<cudaStream_t>(stream)>>>(params);
  return static_cast<Error>(cudaGetLastError());
#endif
}

inline int CeilDiv(int64_t a, int64_t b) { return static_cast<int>((a + b - 1) / b); }

}  // namespace heddle::kernels::cuda
