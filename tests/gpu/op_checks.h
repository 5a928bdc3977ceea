// The checks and timings of tests/gpu/run.sh, on whatever device CreateCudaDevice makes: a GPU, or
// the emulated one (so that this program is itself tested on machines without a GPU).
#pragma once

#include <string>
#include <vector>

#include "kernels/device.h"

namespace heddle::gpu {

struct CheckResult {
  std::string name;
  double worst = 0;  // largest error over what is allowed; <= 1 passes
};

// Ops against the reference over odd shapes, in the device's activation type.
std::vector<CheckResult> CheckOps(kernels::Device& device);

struct Timing {
  std::string name;
  double microseconds = 0;
  double amount = 0;  // bytes that must move, or operations that must be done, per run
  bool is_bandwidth = true;
};

// Repeats each op within one Run, often enough to hide the start of the first. Weights and caches
// are larger together than any L2 cache.
std::vector<Timing> TimeOps(kernels::Device& device, int32_t repeats);

// Products of 64 to 1024 rows with quantised weights, as the device makes them and by way of a copy
// of the weights in BF16, which is what `dequantizing` always does: for
// kernels/cuda/linear_choice.cc. Amounts are operations.
std::vector<Timing> TimeManyRows(kernels::Device& device, kernels::Device& dequantizing,
                                 int32_t repeats);

}  // namespace heddle::gpu
