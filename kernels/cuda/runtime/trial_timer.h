// Measures how long work takes on the device when its inputs come from memory: before every run the
// L2 is filled with other data, as a step's other weights would fill it.
//
// Blocks until the device has finished all its work. Must not be used while launches go to a tape.
// Thread-safety: none.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"
#include "kernels/cuda/runtime/runtime.h"

namespace heddle::kernels::cuda {

class TrialTimer {
 public:
  // Takes kColdBytes of the device's memory; if that fails, the L2 is not flushed.
  explicit TrialTimer(Runtime& runtime);
  ~TrialTimer();
  TrialTimer(const TrialTimer&) = delete;
  TrialTimer& operator=(const TrialTimer&) = delete;

  // Nanoseconds of the shortest of kRuns, after a first run that may load code. `enqueue` puts the
  // work on lane 0; its error is returned.
  absl::StatusOr<int64_t> Time(const std::function<absl::Status()>& enqueue);

  static constexpr int kRuns = 3;
  // Larger than the L2 of any device so far.
  static constexpr int64_t kColdBytes = int64_t{128} << 20;

 private:
  absl::StatusOr<int64_t> Run(const std::function<absl::Status()>& enqueue);

  Runtime& runtime_;
  uint8_t* cold_ = nullptr;  // [kColdBytes] or nullptr
};

}  // namespace heddle::kernels::cuda
