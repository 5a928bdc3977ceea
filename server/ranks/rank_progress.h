// Whether a rank gets on: what it says of itself several times a second, and when that last told of
// progress.
//
// A collective that begins is progress. So is processor time, of at least a hundredth of the time
// that passes, unless the rank waits for another one: who computes a step begins no collective for
// minutes, where a stage has many layers and rows, and who waits looks for messages now and then.
// Ranks on GPUs report none: their processors only watch, and a GPU computes a step in seconds.
// Thread-safety: none.
#pragma once

#include <chrono>
#include <cstdint>

namespace heddle::server {

class RankProgress {
 public:
  using Time = std::chrono::steady_clock::time_point;
  struct State {
    int64_t op = 0;       // collectives that have begun
    int64_t busy_ms = 0;  // processor time of the process; always 0 on a GPU
    bool waits = false;   // for another rank, in the last collective
  };

  // Its words are not trusted: numbers may be anything.
  void Report(const State& state, Time now) {
    const bool was_busy =
        !state.waits && state.busy_ms > busy_ms_ &&
        static_cast<double>(state.busy_ms) - static_cast<double>(busy_ms_) >= LeastBusyMs(now);
    const bool has_moved = state.op != state_.op || state.waits != state_.waits || was_busy;
    state_ = state;
    if (has_moved) Restart(now);
  }
  // It begins to count, or has done something that it says elsewhere.
  void Restart(Time now) {
    moved_ = now;
    busy_ms_ = state_.busy_ms;
  }

  int64_t op() const { return state_.op; }
  bool waits() const { return state_.waits; }
  Time moved() const { return moved_; }

 private:
  static constexpr double kLeastBusyShare = 0.01;

  double LeastBusyMs(Time now) const {
    const std::chrono::duration<double, std::milli> passed = now - moved_;
    return kLeastBusyShare * passed.count();
  }

  State state_;
  int64_t busy_ms_ = 0;  // when it last moved
  Time moved_{};
};

}  // namespace heddle::server
