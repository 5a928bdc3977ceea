#include "scheduler/simulation/latency_histogram.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace heddle::scheduler {
namespace {

// Neighbouring classes differ by 1 %, from 1 us to a little over a week.
constexpr double kRatio = 1.01;
constexpr int kClasses = 2740;

int ClassOf(double us) {
  if (us <= 1.0) return 0;
  static const double inverse_log = 1.0 / std::log(kRatio);
  return std::min(kClasses - 1, static_cast<int>(std::lround(std::log(us) * inverse_log)));
}

// The number of values, out of `count`, at or below the percentile; at least one.
int64_t RankOf(double share, int64_t count) {
  const auto rank = static_cast<int64_t>(std::ceil(share * static_cast<double>(count)));
  return std::clamp<int64_t>(rank, 1, count);
}

}  // namespace

LatencyHistogram::LatencyHistogram() : classes_(kClasses, 0) {}

void LatencyHistogram::Add(double us) {
  ++classes_[ClassOf(us)];
  ++count_;
  sum_us_ += us;
  max_us_ = std::max(max_us_, us);
}

double LatencyHistogram::PercentileUs(double share) const {
  if (count_ == 0) return 0;
  int64_t left = RankOf(share, count_);
  for (int i = 0; i < kClasses; ++i) {
    left -= classes_[i];
    if (left <= 0) return std::min(std::pow(kRatio, i), max_us_);
  }
  return max_us_;
}

double Percentile(std::vector<double>* values, double share) {
  if (values->empty()) return 0;
  std::sort(values->begin(), values->end());
  return (*values)[RankOf(share, static_cast<int64_t>(values->size())) - 1];
}

}  // namespace heddle::scheduler
