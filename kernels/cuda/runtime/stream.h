// The stream that kernels are enqueued on, and the launch of one. Part of the runtime.
//
// Rules for all headers of launchers (*_params.h): they have plain structs of device pointers, and
// functions that launch kernels with them. They include neither CUDA nor Abseil, so that .cc and
// .cu files share them. Launchers enqueue on `stream` and return at once: no synchronisation, no
// allocation. Tensors hold `act` (kBF16 or kF32) unless said otherwise. The caller checks shapes
// (cuda_ops.cc).
#pragma once

#include <cstdint>

#include "kernels/cuda/runtime/tape.h"
#include "kernels/cuda/runtime/tensor_map.h"

namespace heddle::kernels::cuda {

using Stream = const LaunchQueue*;
using Error = int;  // cudaError_t as its number
inline constexpr Error kSuccess = 0;
inline constexpr Error kEmulatedFault = 9999;  // see emulate::TakeFindings

// Starts a kernel; `params` is copied.
Error LaunchKernel(const void* kernel, Tape::Caller call, const LaunchShape& shape, void* stream,
                   const void* params, size_t params_bytes);
// Asks the device once for what `kernel` needs beyond what any kernel has: more than 48 KiB of
// shared memory for a block, or the division of memory that `queue` wants.
Error PrepareKernel(const void* kernel, const LaunchShape& shape, Stream queue);
// Describes `matrix` to bulk copies. kSuccess on devices of sm_90 only.
Error EncodeTensorMap(const TiledMatrix& matrix, TensorMap* map);

}  // namespace heddle::kernels::cuda
