// Checks and timings of attention over chosen positions, parts of op_checks.h's.
#pragma once

#include <cstdint>

#include "kernels/device.h"
#include "kernels/dtype.h"
#include "tests/gpu/op_checks.h"

namespace heddle::gpu {

// Checks what an indexer chooses for decodes, a chunk and a tree, and attention over it, against
// the reference: the largest error as a share of the allowed one; any other choice is 1e9.
double CheckSelection(kernels::Device& device, kernels::DType cache);

// Choices of 2,048 positions by DeepSeek-V3.2's 64 heads of 128, for one row and for a chunk, and
// attention of 128 heads over them.
void TimeSelection(kernels::Device& device, int32_t repeats, const TimingReport& report);

}  // namespace heddle::gpu
