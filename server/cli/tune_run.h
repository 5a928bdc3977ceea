// Finds the steps that a device runs faster in two halves: measures decoding steps and chunks of
// prompts of several sizes, whole and split in several ways, and makes rules of the faster ones.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/load.h"
#include "engine/model/local_executor.h"
#include "kernels/device.h"
#include "kernels/nano_batch.h"

namespace heddle::server {

// Steps of `sequences` rows, one per sequence, behind `context` positions; or of a chunk of a
// single prompt, which ends at position `context`.
struct TunePoint {
  int32_t sequences = 0;
  int32_t context = 0;
  int32_t chunk = 0;  // rows; 0: the step decodes
  int32_t rows() const { return chunk > 0 ? chunk : sequences; }
};

struct TuneTiming {
  TunePoint point;
  double whole_us = 0;  // of an unsplit step
  double split_us = 0;  // of the best way to split it, which is:
  int32_t attention_multiprocessors = 0;
  double speedup() const { return whole_us / split_us; }
};

// A split that gains less is not worth its risk.
inline constexpr double kLeastSpeedup = 1.03;

// The sizes that `limits` has room for, ordered by rows, then by context: decodes as they occur in
// serving, and then chunks.
std::vector<TunePoint> TunePoints(const engine::ExecutorLimits& limits);

// The devices that a model is loaded onto, of all ranks. Thread-safety: Watch's options are used by
// any threads; SetNanoBatches by one, between steps.
class LoadedDevices {
 public:
  // Notes the devices that these options make from now on; it outlives them.
  void Watch(engine::LoadOptions* options);
  // Tells all of them, so that they divide steps alike. Errors are the device's. REQUIRES: the
  // model that was loaded is there.
  absl::Status SetNanoBatches(const kernels::NanoBatchProfile& profile);

 private:
  absl::StatusOr<std::unique_ptr<kernels::Device>> Noted(
      absl::StatusOr<std::unique_ptr<kernels::Device>> device);

  std::mutex mutex_;
  std::vector<kernels::Device*> devices_;  // GUARDED_BY(mutex_)
};

// Times each point whole, and split with no multiprocessors reserved for attention and with a
// quarter to a half of them; takes the median of `repeat` runs of some steps. The executor must be
// idle; its device runs steps whole afterwards. `set` says how steps are divided from then on, on
// all ranks; empty: the executor's device is alone. Errors are the device's.
using SetNanoBatchesFn = std::function<absl::Status(const kernels::NanoBatchProfile& profile)>;
absl::StatusOr<TuneTiming> TimePoint(engine::LocalExecutor& executor, const TunePoint& point,
                                     int32_t repeat, const SetNanoBatchesFn& set = {});

struct TunedProfile {
  kernels::NanoBatchProfile profile;
  std::vector<double> speedups;  // one per rule
};
// One rule per timing, which holds for steps of its kind, for the numbers of rows that are nearest
// to it, and for its context and longer ones up to the next timing's; steps smaller than any
// measured one run whole. A chunk that is a whole prompt stands for shorter contexts, too.
// REQUIRES: timings in the order of TunePoints.
TunedProfile RulesOf(std::span<const TuneTiming> timings, const std::string& device_name);

}  // namespace heddle::server
