// Starts a kernel on a stream or in the emulator, or records it on a tape. Only for the launchers
// in .cu files.
#pragma once

#include <utility>

#include "kernels/cuda/primitives/primitives.cuh"
#include "kernels/cuda/runtime/stream.h"
#include "kernels/dtype.h"

namespace heddle::kernels::cuda {

// Launches early if the queue allows it: every kernel keeps the rules for that (primitives.cuh).
template <typename Params>
Error Launch(void (*kernel)(Params), LaunchShape shape, Stream queue, const Params& params) {
  if (shape.grid_x <= 0 || shape.grid_y <= 0 || shape.grid_z <= 0) return kSuccess;
  const void* address = reinterpret_cast<const void*>(kernel);
  if (const Error error = PrepareKernel(address, shape, queue); error != kSuccess) return error;
  const Tape::Caller call = [](const void* function, const void* arguments) {
#if defined(HEDDLE_CUDA_EMULATE)
    reinterpret_cast<void (*)(Params)>(const_cast<void*>(function))(
        *static_cast<const Params*>(arguments));
#else
    static_cast<void>(function), static_cast<void>(arguments);
#endif
  };
  shape.early = queue->early && !std::exchange(queue->joins, false);
  if (queue->tape != nullptr) {
    queue->tape->Add(address, call, shape, &params, sizeof(Params), queue->lane);
    return kSuccess;
  }
  return LaunchKernel(address, call, shape, queue->stream, &params, sizeof(Params));
}

inline int CeilDiv(int64_t a, int64_t b) { return static_cast<int>((a + b - 1) / b); }

// Calls fn with a value of the type that activations are stored in.
template <typename Fn>
auto ForActivation(DType act, Fn fn) {
  return act == DType::kF32 ? fn(float()) : fn(BFloat16());
}

}  // namespace heddle::kernels::cuda
