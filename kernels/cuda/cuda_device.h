// The CUDA backend's device. Callable in every build: without CUDA, creation fails with
// UNIMPLEMENTED, so that callers carry no #ifdef.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/dtype.h"

namespace heddle::kernels {

// The carrier of sums and rows between ranks whose memory the devices do not reach: those of other
// processes, and of GPUs without peer access.
enum class RankNetwork : uint8_t {
  kAuto,  // NCCL where it connects all ranks of a group, else the host alone
  kHost,  // the host's memory, and the communicator between the processes
  kNccl,  // as kAuto, but an error that says why it is not NCCL
};

struct CudaDeviceOptions {
  int32_t ordinal = 0;  // among the devices in CUDA_VISIBLE_DEVICES
  // kBF16 for serving. kF32 computes everything in F32 on plain kernels: it is slow and for
  // checking other results.
  DType activations = DType::kBF16;
  // Scratch that ops share one after the other: parts of split attention, edited logits, weights
  // on their way to the tensor cores. Work that needs more is done in pieces.
  int64_t workspace_bytes = int64_t{256} << 20;
  // Steps of few rows are launched as graphs (kernels/cuda/runtime/graph_cache.h).
  bool graphs = true;
  // Makes products of many rows with quantised weights use a copy of the weights in BF16, whatever
  // kernels/cuda/linear/linear_choice.h would choose, to measure one against the other.
  bool always_dequantizes = false;
  // For serving on a GPU: products of many rows use the way that was fastest when their shape was
  // first met (kernels/cuda/linear/linear_ways.h), not the predicted one; and the device asks for a
  // warm-up in which that happens. Not for emulated devices, where times are meaningless.
  bool tunes = false;
  // Lets launches begin before earlier ones have ended, on devices that can
  // (kernels/cuda/primitives/primitives.cuh). Off to measure what that gains.
  bool early_launches = true;
  // Enables the kernels for sm_90a: matrix instructions of warpgroups, bulk copies. Off to find the
  // cause of a problem.
  bool warpgroups = true;
  // Attention of long chunks over caches of F8 multiplies queries of 8 bits by keys of 8 bits, on
  // sm_90a and heads of 128. Off: both in 16 bits, to measure one against the other.
  bool scores_codes = true;
  // Makes all kernels leave as little as possible to the L1, so that they can run at the same time.
  // Not measured yet: it slows kernels that read through the L1.
  bool one_memory_split = false;
  // How long a kernel waits for that of another rank that the host knows nothing bad of. A rank may
  // load code, or have more to compute; one that fails is noticed at once.
  int64_t rank_wait_ms = 60'000;
  RankNetwork rank_network = RankNetwork::kHost;
  // With NCCL: ranks that share layers use it in steps of more rows, and the host in those of up to
  // so many, which are graphs; the same on all ranks. Predicted (docs/benchmarks/gpu.md).
  int32_t rows_through_host = 128;
};

// UNIMPLEMENTED without CUDA in the build, or for a GPU that is too old or that this build has no
// code for; FAILED_PRECONDITION without a driver, or with one too old; NOT_FOUND for an ordinal
// that does not exist; RESOURCE_EXHAUSTED if the GPU or the host has no memory left to start with;
// UNAVAILABLE for a GPU that cannot be used.
absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(const CudaDeviceOptions& options);

}  // namespace heddle::kernels
