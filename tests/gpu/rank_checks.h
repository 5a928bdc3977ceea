// Two ranks on one GPU, or on two: the sums that they make together, against those of the host, and
// how long they take. What the link between two GPUs adds shows only on two.
#pragma once

#include <cstdint>

namespace heddle::gpu {

// Prints a line for each way to meet and shape: by memory, through the host, over NCCL if it is
// there. `ordinals` of the two ranks. Returns 0, 1 if a sum is wrong, or 77 without such devices.
int CheckRanks(int32_t first, int32_t second);

}  // namespace heddle::gpu
