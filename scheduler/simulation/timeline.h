// The scheduler's state over time in a bounded number of equal intervals: when time outgrows them,
// neighbours are joined and each becomes twice as long.
//
// Unit: microseconds since the simulation began. Thread-safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace heddle::scheduler {

// The state of the scheduler while time passes.
struct LoadState {
  double pages_used = 0;    // held by sequences
  double pages_cached = 0;  // held by nobody, but a later prompt may take them over
  double running = 0;       // sequences
  double waiting = 0;       // requests
};

struct Interval {
  LoadState sum;            // state * time in it, as a share of the interval's whole length
  double most_pages = 0;    // the most pages used at any moment
  double busy_us = 0;       // time in steps
  int64_t tokens = 0;       // generated
  int64_t prompt_rows = 0;  // computed
};

class Timeline {
 public:
  // Keeps at most `max_intervals` (even, >= 2) intervals.
  explicit Timeline(int max_intervals = 512);

  // Records that the state was `state` from `begin_us` to `end_us`; time never goes back. `busy`: a
  // step ran.
  void Pass(double begin_us, double end_us, const LoadState& state, bool busy);
  // Counts what came out of a step that ended at `at_us`.
  void AddTokens(double at_us, int64_t tokens, int64_t prompt_rows);

  double interval_us() const { return interval_us_; }
  double end_us() const { return end_us_; }
  // Ascending in time; the last one may be shorter than the others.
  const std::vector<Interval>& intervals() const { return intervals_; }
  // The length of the index-th interval as far as time has passed, and the mean state over it.
  double LengthUs(size_t index) const;
  LoadState Mean(size_t index) const;

 private:
  Interval& At(double us);
  void Halve();

  size_t max_intervals_;
  double interval_us_;
  double end_us_ = 0;
  std::vector<Interval> intervals_;
};

}  // namespace heddle::scheduler
