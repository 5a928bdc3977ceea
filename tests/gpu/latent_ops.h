// Checks and timings of attention over latents with its projections, parts of op_checks.h's.
#pragma once

#include <cstdint>

#include "kernels/device.h"
#include "kernels/dtype.h"
#include "tests/gpu/op_checks.h"

namespace heddle::gpu {

// A chunk of 300 rows beside two others, at once (Ops::AttendLatents) against one op after the
// other on the same device: the largest error as a share of the allowed one.
double CheckLatents(kernels::Device& device, kernels::DType cache);

// A prompt of 4,096 tokens of DeepSeek-V2-Lite's 16 heads: at once, and over latents alone.
void TimeLatents(kernels::Device& device, int32_t repeats, const TimingReport& report);

}  // namespace heddle::gpu
