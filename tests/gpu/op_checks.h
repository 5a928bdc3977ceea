// The checks and timings of tests/gpu/run.sh, on whatever device CreateCudaDevice makes: a GPU, or
// the emulated one (so that this program is itself tested on machines without a GPU).
//
// Each check is announced when it begins, and again when it ends, so that the name of one that
// hangs, or that the device does not survive, is known.
#pragma once

#include <functional>
#include <string>

#include "kernels/device.h"

namespace heddle::gpu {

struct CheckReport {
  std::function<bool(const std::string& name)> begins;  // false: skip it
  // The largest error as a share of the allowed one; <= 1 passes.
  std::function<void(const std::string& name, double worst)> ends;
};

// Ops against the reference over odd shapes, in the device's activation type.
void CheckOps(kernels::Device& device, const CheckReport& report);

struct Timing {
  std::string name;
  double microseconds = 0;
  double amount = 0;  // bytes that must move, or operations that must be done, per run
  bool is_bandwidth = true;
};

struct TimingReport {
  std::function<bool(const std::string& name)> begins;  // false: skip it
  std::function<void(const Timing& timing)> ends;
};

// Repeats each op within one launch, often enough to hide the start of the first, and takes the
// time from the device's clock. Weights and caches together exceed any L2 cache. The ops of the
// goals in docs/benchmarks/gpu.md come first.
void TimeOps(kernels::Device& device, int32_t repeats, const TimingReport& report);

// Products of 64 to 1024 rows with quantised weights, by way of a copy of the weights in BF16,
// which is what `dequantizing` always does: for kernels/cuda/linear/linear_choice.cc.
void TimeDequantized(kernels::Device& dequantizing, int32_t repeats, const TimingReport& report);

// The time lost between kernels that depend on each other, as in a decoding step of one row: norms
// alone, and norms and products in turn. `how` names the device's way in the results.
void TimeGaps(kernels::Device& device, const std::string& how, const TimingReport& report);

}  // namespace heddle::gpu
