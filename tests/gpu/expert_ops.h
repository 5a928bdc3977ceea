// Checks and timings of mixtures of experts, parts of op_checks.h's.
#pragma once

#include <cstdint>

#include "kernels/device.h"
#include "kernels/dtype.h"
#include "tests/gpu/code_format.h"
#include "tests/gpu/op_checks.h"

namespace heddle::gpu {

// `n` rows that choose 2 of 3 experts: some two thirds of them share one. The largest error as a
// share of the allowed one.
double CheckExperts(kernels::Device& device, kernels::DType dtype, int64_t n);
double CheckExperts(kernels::Device& device, const CodeFormat& format, int64_t n);

// The mixture of Qwen3-30B-A3B: 8 of 128 experts of 768 x 2048, in BF16 and FP8. By codes of x only
// where the device has a library that multiplies codes.
void TimeExperts(kernels::Device& device, const TimingReport& report);

}  // namespace heddle::gpu
