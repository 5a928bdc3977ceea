// Checks and timings of layers with several streams, sparse gates and factors of elements, parts of
// op_checks.h's.
#pragma once

#include "kernels/device.h"
#include "tests/gpu/op_checks.h"

namespace heddle::gpu {

// Each op against the reference, with rows in groups of columns and not.
void CheckStreamOps(kernels::Device& device, const CheckReport& report);

// The ops of a layer of Gemma 3n E4B, decoding and reading a prompt.
void TimeStreamOps(kernels::Device& device, int32_t repeats, const TimingReport& report);

}  // namespace heddle::gpu
