// The CUDA backend's device. Callable in every build: where CUDA was not built in, creation fails
// with UNIMPLEMENTED, so that callers carry no #ifdef.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/dtype.h"

namespace heddle::kernels {

struct CudaDeviceOptions {
  int32_t ordinal = 0;  // of the devices that CUDA_VISIBLE_DEVICES leaves
  // kBF16 for serving. kF32 computes everything in F32 on plain kernels: slow, for checking other
  // results against.
  DType activations = DType::kBF16;
  // Scratch that ops share one after the other: parts of split attention, edited logits, weights
  // on their way to the tensor cores. Work that needs more is done in pieces.
  int64_t workspace_bytes = int64_t{256} << 20;
  // Steps of few rows are launched as graphs (kernels/cuda/runtime/graph_cache.h).
  bool graphs = true;
  // Products of many rows with quantised weights go through a copy of the weights in BF16, whatever
  // kernels/cuda/linear/linear_choice.h would choose: to measure one against the other.
  bool always_dequantizes = false;
  // For serving on a GPU: products of many rows go the way that was fastest when their shape was
  // first met (kernels/cuda/linear/linear_ways.h), and not the one that is predicted; and the
  // device asks for a warm-up in which that happens. Not where time means nothing, on emulated
  // devices.
  bool tunes = false;
  // Launches begin before those before them have ended, on devices that can do it
  // (kernels/cuda/primitives/primitives.cuh). Off for measuring what that gains.
  bool early_launches = true;
  // Kernels for sm_90a alone: matrix instructions of warpgroups, bulk copies. Off to find out what
  // is to blame.
  bool warpgroups = true;
  // All kernels leave the L1 as little as they can, so that they can begin beside each other. Not
  // measured yet: it costs those that read through the L1.
  bool one_memory_split = false;
};

// UNIMPLEMENTED without CUDA in the build, or for a GPU that is too old or that this build holds no
// code for; FAILED_PRECONDITION without a driver, or with one too old; NOT_FOUND for an ordinal
// that does not exist; RESOURCE_EXHAUSTED if the GPU or the host has no memory left to start with;
// UNAVAILABLE for a GPU that is there and cannot be used.
absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(const CudaDeviceOptions& options);

}  // namespace heddle::kernels
