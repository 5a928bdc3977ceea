// Checks and timings of the product of query, key and value heads with their rotation and cache
// writes, parts of op_checks.h's.
#pragma once

#include <cstdint>

#include "kernels/device.h"
#include "kernels/dtype.h"
#include "tests/gpu/op_checks.h"

namespace heddle::gpu {

// `n` rows, at once against one op after the other on the same device: 0 if all bits are the same.
double CheckHeads(kernels::Device& device, kernels::DType weight, kernels::DType cache, int64_t n);

// Llama 3.1 8B's 48 heads, one row: at once, and one op after the other.
void TimeProjectedHeads(kernels::Device& device, int32_t repeats, const TimingReport& report);

}  // namespace heddle::gpu
