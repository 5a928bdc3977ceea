// Checks and timings of RWKV-7's time mixes and of short convolutions, parts of op_checks.h's.
#pragma once

#include "kernels/device.h"
#include "tests/gpu/op_checks.h"

namespace heddle::gpu {

// Texts in chunks, against the reference.
void CheckMixes(kernels::Device& device, const CheckReport& report);

// Those of RWKV-7 2.9B and LFM2 1.2B, decoding and reading a prompt.
void TimeMixes(kernels::Device& device, int32_t repeats, const TimingReport& report);

}  // namespace heddle::gpu
