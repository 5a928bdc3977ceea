// The sizes that GPUs serve best with, by their memory: of devices, and of plans for GPUs that are
// not here.
#pragma once

#include <cstdint>

#include "kernels/device.h"

namespace heddle::kernels::cuda {

inline constexpr int32_t kLogitRows = 1024;  // Device::preferred_logit_rows

// Memory of a GPU that NCCL takes for buffers, beside what it takes for a context: some 6 MiB for
// each block and direction, in communicators of 8 blocks for sums and of 2 for each pair of stages.
// Predicted (docs/benchmarks/gpu.md).
inline constexpr int64_t kNcclBytes = int64_t{256} << 20;

// Device::preferred_step of a GPU with so much memory. Products of some thousand rows are bound by
// arithmetic, which offline throughput wants; 4,096 rows of an 8B model take some 80 ms on an H200.
// Smaller devices keep their memory for pages.
inline StepSize StepFor(int64_t total_bytes) {
  if (total_bytes >= int64_t{60} << 30) return {.tokens = 4096, .seqs = 1024};
  if (total_bytes >= int64_t{20} << 30) return {.tokens = 2048, .seqs = 512};
  return {};
}

}  // namespace heddle::kernels::cuda
