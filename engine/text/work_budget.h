// Limits on encoding one text. A tokenizer's rules come from a model file: they may make texts grow
// without end, or take quadratic time or worse.
//
// Unit: bytes of normalised text, and CPU time of the calling thread, so that a busy machine does
// not use up the budget.
// Thread-safety: none; used by the thread that made it.
#pragma once

#include <chrono>
#include <cstddef>
#include <string_view>

#include "absl/status/status.h"

namespace heddle::engine::text {

class WorkBudget {
 public:
  // Unicode's own mappings make at most 11 bytes of one (NFKD of U+FDFA); replacement rules of
  // published tokenizers make three (a space becomes U+2581). A prefix may be added.
  static constexpr size_t kMaxGrowth = 16;
  static constexpr size_t kMaxPrefix = 4096;
  // The slowest published tokenizers take a tenth of a microsecond per byte; for a short text the
  // first use of a pattern dominates.
  static constexpr double kSeconds = 2;
  static constexpr double kSecondsPerByte = 4e-6;

  // The time starts with the first CheckTime.
  WorkBudget(size_t max_bytes, double cpu_seconds)
      : bytes_left_(max_bytes), cpu_seconds_(cpu_seconds) {}
  // The budget for a text of that size.
  static WorkBudget For(size_t text_bytes) {
    return {(text_bytes + kMaxPrefix) * kMaxGrowth,
            kSeconds + kSecondsPerByte * static_cast<double>(text_bytes)};
  }

  // RESOURCE_EXHAUSTED if `bytes` are more than what is left. Call it before producing them.
  absl::Status CheckSize(size_t bytes) const;
  // Counts `bytes` of normalised text as done.
  void Take(size_t bytes) { bytes_left_ -= bytes < bytes_left_ ? bytes : bytes_left_; }

  // RESOURCE_EXHAUSTED if the time is used up. Reads a clock; costs some 30 ns.
  absl::Status CheckTime();
  // Calls CheckTime now and then, for loops over code points.
  absl::Status CheckTimeSometimes() {
    constexpr unsigned kRounds = 256;
    return ++rounds_ % kRounds == 0 ? CheckTime() : absl::OkStatus();
  }

 private:
  using Clock = std::chrono::steady_clock;

  size_t bytes_left_;
  double cpu_seconds_;
  double end_cpu_seconds_ = -1;  // set at the first look: most texts are done by then
  unsigned rounds_ = 0;
  Clock::time_point looked_;  // the epoch means not yet
};

}  // namespace heddle::engine::text
