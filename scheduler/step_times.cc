#include "scheduler/step_times.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace heddle::scheduler {
namespace {

// Measurements after which a bucket's time is trusted to tell what is no step of its own; and the
// most that are counted, after which the mean is changed slowly.
constexpr int32_t kCredible = 3;
constexpr int32_t kMostCounted = 32;
constexpr double kNoiseWeight = 1.0 / 64;
constexpr double kLargestNoise = 0.2;
// Share of one step's deviation, as a power, that all buckets take over.
constexpr double kDriftPower = 0.02;
// A step counts as at most so many times its bucket's mean.
constexpr double kLargestDeviation = 3;
// A step was held up by something else if it takes so many times as long as expected. Four rows
// more than the one that was measured are expected to take 1.4 times as long; on a machine where
// each row costs as much as the first, they take 3.6 times that, which is no delay.
constexpr double kDelayFactor = 4;
// Steps without a delay for each one that is put down to something else.
constexpr double kStepsPerDelay = 8;
// Steps after which an unused bucket is forgotten.
constexpr int64_t kForgetSteps = 16384;
// Beyond the largest measured step, another row costs this share of the mean time of a row in that
// step: few rows are limited by memory, many by arithmetic. The CPU's 8 rows at 1.7 times one and
// its nearly proportional 64 are the pattern; the first such step replaces the guess.
constexpr double kFewRowsShare = 0.1;
constexpr double kManyRowsShare = 0.5;
constexpr double kManyRows = 8;
// The guess is not used any more when the measured steps are so far apart.
constexpr double kGuessedFactor = 1.5;

}  // namespace

int StepTimes::BucketOf(int32_t rows) {
  const auto count = static_cast<uint32_t>(std::clamp(rows, 1, kMaxRows - 1));
  if (count <= 16) return static_cast<int>(count) - 1;
  const int octave = std::bit_width(count) - 1;  // 4 for 16 to 31
  return 16 + 8 * (octave - 4) + static_cast<int>((count >> (octave - 3)) & 7);
}

// Whether the step says nothing of its number of rows; counts the delays that are taken for that.
bool StepTimes::IsDelay(double us, double expected_us, Bucket* bucket) {
  if (expected_us <= 0) return false;
  if (us <= kDelayFactor * expected_us) {
    bucket->patience = std::min(kMostPatience, bucket->patience + 1 / kStepsPerDelay);
    return false;
  }
  if (bucket->patience < 1) return false;
  bucket->patience -= 1;
  return true;
}

double StepTimes::Observe(int32_t rows, double us) {
  ++steps_;
  Bucket& bucket = buckets_[static_cast<size_t>(BucketOf(rows))];
  if (steps_ - bucket.seen >= kForgetSteps) bucket = {};
  const double expected_us = PredictUs(rows);
  if (IsDelay(us, expected_us, &bucket)) return expected_us;
  double own_us = us / drift_;
  // The first steps were those that something held up.
  if (bucket.count < kSettled && kDelayFactor * own_us < bucket.us) bucket.count = 0;
  if (bucket.count >= kCredible) own_us = std::min(own_us, kLargestDeviation * bucket.us);
  if (bucket.count >= kSettled) {
    const double deviation = std::max(own_us / bucket.us, 1 / kLargestDeviation);
    drift_ *= std::pow(deviation, kDriftPower);
    const double noise = std::min(std::abs(deviation - 1), kLargestNoise);
    noise_ += kNoiseWeight * (noise - noise_);
  }
  bucket.seen = steps_;
  Add(own_us, &bucket);
  bucket.rows += (rows - bucket.rows) / bucket.count;
  MakeCurve();
  // Even so, a bucket that is known does not change within a step.
  return bucket.count > kCredible ? std::min(us, kDelayFactor * expected_us) : us;
}

void StepTimes::Add(double own_us, Bucket* bucket) {
  if (bucket->count >= kSettled) {
    bucket->count = std::min(bucket->count + 1, kMostCounted);
    bucket->us += (own_us - bucket->us) / bucket->count;
    return;
  }
  const auto end = bucket->first.begin() + bucket->count;
  const auto place = std::upper_bound(bucket->first.begin(), end, own_us);
  std::copy_backward(place, end, end + 1);
  *place = own_us;
  ++bucket->count;
  // The lower one of two in the middle: what disturbs a step makes it longer.
  bucket->us = bucket->first[static_cast<size_t>(bucket->count - 1) / 2];
}

// Pools neighbours whose times would fall (the pool-adjacent-violators algorithm).
void StepTimes::MakeCurve() {
  curve_.clear();
  pooled_.clear();
  for (const Bucket& bucket : buckets_) {
    if (bucket.count == 0 || steps_ - bucket.seen >= kForgetSteps) continue;
    const double weight = bucket.count;
    Point pool{1, bucket.us * (1 - noise_ / std::sqrt(weight)), weight};  // rows: of buckets in it
    curve_.push_back({bucket.rows, 0, weight});
    while (!pooled_.empty() && pooled_.back().us >= pool.us) {
      const Point& last = pooled_.back();
      const double both = pool.weight + last.weight;
      pool.us = (pool.us * pool.weight + last.us * last.weight) / both;
      pool.weight = both;
      pool.rows += last.rows;
      pooled_.pop_back();
    }
    pooled_.push_back(pool);
  }
  size_t point = 0;
  for (const Point& pool : pooled_) {
    for (double i = 0; i < pool.rows; ++i) curve_[point++].us = pool.us;
  }
}

bool StepTimes::Knows(int32_t rows) const {
  return !curve_.empty() && std::lround(curve_.front().rows) <= rows &&
         rows <= std::lround(curve_.back().rows);
}

int32_t StepTimes::NumMeasured(int32_t rows) const {
  const Bucket& bucket = buckets_[static_cast<size_t>(BucketOf(rows))];
  return steps_ - bucket.seen < kForgetSteps ? bucket.count : 0;
}

int32_t StepTimes::LargestKnown() const {
  return curve_.empty() ? 0 : static_cast<int32_t>(std::lround(curve_.back().rows));
}

double StepTimes::PredictUs(int32_t rows) const {
  if (curve_.empty()) return 0;
  const Point& first = curve_.front();
  const Point& last = curve_.back();
  if (rows <= first.rows) return first.us * drift_;
  if (rows <= last.rows) {
    const auto above = std::lower_bound(curve_.begin(), curve_.end(), static_cast<double>(rows),
                                        [](const Point& p, double r) { return p.rows < r; });
    const auto below = above - 1;
    const double part = (rows - below->rows) / (above->rows - below->rows);
    return (below->us + part * (above->us - below->us)) * drift_;
  }
  const double share = last.rows > kManyRows ? kManyRowsShare : kFewRowsShare;
  double slope = share * last.us / last.rows;
  if (last.rows > first.rows) {
    const double measured = (last.us - first.us) / (last.rows - first.rows);
    // Two measured points know more than the guess; many rows cost no less each than few.
    slope = last.rows > kGuessedFactor * first.rows ? measured : std::max(slope, measured);
  }
  return (last.us + slope * (rows - last.rows)) * drift_;
}

}  // namespace heddle::scheduler
