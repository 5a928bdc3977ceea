// How long a thread that is meant for free cores rests, so that it takes little where they are not
// free. The lowest priority of the operating system is not enough for that: a thread of an engine
// that waits for a moment, a thousand times a second, finds its core taken, and the part of a step
// that it was woken for is over before it has it back.
//
// A thread that gets most of a core does not rest: nobody else wants it. One that gets less rests
// until it has had kPart of a core.
// Thread-safety: none; owned by the thread. Time and CPU time of the thread come in as arguments.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>

#include "server/http/http_message.h"

namespace heddle::server {

class CorePace {
 public:
  // The part of a core below which somebody else wants it, too.
  static constexpr double kMostOfCore = 0.75;
  // The share that a thread of nice 10 gets of a core that others compute on, such as those beside
  // it.
  static constexpr double kPart = 0.1;
  // CPU time between rests: long beside the time of the waking, and short for somebody who waits
  // for the core meanwhile.
  static constexpr int64_t kBurstUs = 5'000;
  // Work that could not be interrupted is not paid for by longer rests than this.
  static constexpr double kLongestRestSeconds = 0.25;

  // Work begins, or goes on after a rest.
  void Begin(Clock::time_point now, int64_t cpu_us) {
    at_ = now;
    cpu_at_us_ = cpu_us;
  }

  // The rest that is due now. Zero: none, go on.
  Clock::duration Rest(Clock::time_point now, int64_t cpu_us) {
    seconds_ += SecondsBetween(at_, now);
    spent_us_ += cpu_us - cpu_at_us_;
    Begin(now, cpu_us);
    if (spent_us_ < kBurstUs) return Clock::duration::zero();
    const double cpu_seconds = static_cast<double>(spent_us_) * 1e-6;
    double rest = 0;
    if (cpu_seconds < kMostOfCore * seconds_) {
      rest = std::clamp(cpu_seconds / kPart - seconds_, 0.0, kLongestRestSeconds);
    }
    seconds_ = 0;
    spent_us_ = 0;
    return std::chrono::microseconds(std::llround(rest * 1e6));
  }

 private:
  Clock::time_point at_;
  int64_t cpu_at_us_ = 0;
  // Work since the last rest.
  double seconds_ = 0;
  int64_t spent_us_ = 0;
};

}  // namespace heddle::server
