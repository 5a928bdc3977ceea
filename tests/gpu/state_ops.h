// Checks and timings of layers with state in place of keys and values, parts of op_checks.h's.
#pragma once

#include "kernels/device.h"
#include "tests/gpu/op_checks.h"

namespace heddle::gpu {

// Recurrences of each rule in chunks, against the reference.
void CheckStates(kernels::Device& device, const CheckReport& report);

// Recurrences of Qwen3-Next, Granite 4 and Mamba, decoding and reading a prompt.
void TimeStates(kernels::Device& device, int32_t repeats, const TimingReport& report);

}  // namespace heddle::gpu
