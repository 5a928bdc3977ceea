// Finds out which decoding steps a device runs faster in two halves: measures steps of several
// sizes, whole and split in several ways, and makes rules of what was faster.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/local_executor.h"
#include "kernels/nano_batch.h"

namespace heddle::server {

// Steps of `sequences` rows, one each, behind `context` positions.
struct TunePoint {
  int32_t sequences = 0;
  int32_t context = 0;
};

struct TuneTiming {
  TunePoint point;
  double whole_us = 0;  // of a step
  double split_us = 0;  // of the best way to split it, which is:
  int32_t attention_multiprocessors = 0;
  double speedup() const { return whole_us / split_us; }
};

// A split that gains less is not worth its risk.
inline constexpr double kLeastSpeedup = 1.03;

// Sizes that `limits` has room for, ordered by sequences, then by context; decodes as they are met
// in serving.
std::vector<TunePoint> TunePoints(const engine::ExecutorLimits& limits);

// Each point whole, and split with no multiprocessors set apart for attention and with a quarter to
// a half of them; of `repeat` runs of some steps the one in the middle. The executor must be idle;
// its device runs steps whole afterwards. Errors of the device.
absl::StatusOr<TuneTiming> TimePoint(engine::LocalExecutor& executor, const TunePoint& point,
                                     int32_t repeat);

struct TunedProfile {
  kernels::NanoBatchProfile profile;
  std::vector<double> speedups;  // of each rule
};
// One rule for each timing, which holds for the numbers of rows that are nearest to it and for its
// context and longer ones, up to the next; steps smaller than any measured one run whole.
// REQUIRES: timings in the order of TunePoints.
TunedProfile RulesOf(std::span<const TuneTiming> timings, const std::string& device_name);

}  // namespace heddle::server
