// Measures for how long this process did not run, because a signal or a debugger stopped it or its
// machine. A step that took an hour because nothing ran is not stuck.
//
// A thread beats often. If two beats are much further apart than usual, the process did not run for
// the time between them, less what a busy machine may take.
// Thread-safety: Beat by one thread; Us by any. Time is an argument, in microseconds of a clock
// that never goes back.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace heddle::server {

class Pauses {
 public:
  // Beats no further apart than this are no pause. It is several times the longest wait between
  // them (a fifth of a second, server/cli/serve_command.cc), for a machine under load.
  static constexpr int64_t kLongestBeatUs = 1'000'000;

  void Beat(int64_t now_us) {
    const int64_t gap_us = last_beat_us_ == 0 ? 0 : Gap(now_us);
    last_beat_us_ = now_us;  // first: see Us
    past_us_ = past_us_ + gap_us;
  }

  // All pauses until now, including one that has just ended and that no beat has seen. It is 0
  // before the first beat: without beats nothing is known.
  int64_t Us(int64_t now_us) const {
    // The order matters: a beat in between makes the sum too small for a moment, never too large.
    const int64_t past_us = past_us_;
    return past_us + (last_beat_us_ == 0 ? 0 : Gap(now_us));
  }

 private:
  int64_t Gap(int64_t now_us) const {
    return std::max<int64_t>(0, now_us - last_beat_us_ - kLongestBeatUs);
  }

  std::atomic<int64_t> past_us_ = 0;
  std::atomic<int64_t> last_beat_us_ = 0;
};

}  // namespace heddle::server
