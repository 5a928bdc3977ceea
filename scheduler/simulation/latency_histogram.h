// A histogram of durations in geometric classes: constant memory for any number of values, and
// percentiles that are at most 0.5 % off. It is for times between tokens, of which a simulated hour
// has many millions.
//
// Unit: microseconds. Thread-safety: none.
#pragma once

#include <cstdint>
#include <vector>

namespace heddle::scheduler {

class LatencyHistogram {
 public:
  LatencyHistogram();

  void Add(double us);

  int64_t count() const { return count_; }
  double max_us() const { return max_us_; }
  double mean_us() const { return count_ == 0 ? 0 : sum_us_ / static_cast<double>(count_); }

  // The smallest value that at least a `share` (0 to 1) of the counted values do not exceed; 0
  // without values.
  double PercentileUs(double share) const;

 private:
  std::vector<int64_t> classes_;
  int64_t count_ = 0;
  double sum_us_ = 0;
  double max_us_ = 0;
};

// The same for values kept one by one, exact; sorts them. 0 without values.
double Percentile(std::vector<double>* values, double share);

}  // namespace heddle::scheduler
