// The sizes that GPUs serve best with, by their memory: of devices, and of plans for GPUs that are
// not here.
#pragma once

#include <cstdint>

#include "kernels/device.h"

namespace heddle::kernels::cuda {

inline constexpr int32_t kLogitRows = 1024;  // Device::preferred_logit_rows

// Device::preferred_step of a GPU with so much memory. Products of some thousand rows are bound by
// arithmetic, which offline throughput wants; 4,096 rows of an 8B model take some 80 ms on an H200.
// Smaller devices keep their memory for pages.
inline StepSize StepFor(int64_t total_bytes) {
  if (total_bytes >= int64_t{60} << 30) return {.tokens = 4096, .seqs = 1024};
  if (total_bytes >= int64_t{20} << 30) return {.tokens = 2048, .seqs = 512};
  return {};
}

}  // namespace heddle::kernels::cuda
