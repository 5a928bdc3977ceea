// How long a step takes by its number of rows: a table of measured means. A few rows more are far
// from proportional (on a CPU, eight rows of one sequence take 1.7 times as long as one), so that
// the linear CostModel cannot say what a draft costs.
//
// The first steps of a bucket count by their median: the first behind a prompt or a pause finds
// nothing in the caches, and a mean of five with that one is a tenth too high.
//
// Rows are counted together in buckets: exact up to 16, then eight per doubling. Between measured
// buckets times are interpolated, and never fall with more rows (isotonic regression). What was
// seldom measured counts as a little faster than it was, by the noise of a mean of so many:
// otherwise one slow step would keep its number of rows from ever being tried again. All times
// follow the machine: what a step takes longer than its bucket says changes, a little, the times of
// all buckets, because contexts grow and clocks fall. What was not measured for long is forgotten.
//
// A step that takes several times as long as expected was held up by something else, as long as
// that happens seldom at its number of rows: it says nothing, and is booked as expected. If it
// happens again and again, it is what such a step takes.
//
// Unit: microseconds. Thread-safety: none; owned by the engine loop.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace heddle::scheduler {

class StepTimes {
 public:
  static constexpr int32_t kMaxRows = 16384;  // more count as so many

  // A step of `rows` >= 1 took `us` > 0. Returns the time to book for it: `us`, what was expected
  // if something else held the step up, and never much more than that where the time is known.
  double Observe(int32_t rows, double us);

  // Whether a step of so many rows, or of fewer and more, was measured.
  bool Knows(int32_t rows) const;

  // How many of the last steps of about so many rows are remembered, at most 32.
  int32_t NumMeasured(int32_t rows) const;

  // 0 while nothing was measured.
  double PredictUs(int32_t rows) const;

  // The most rows whose time is not a mere guess; to be asked for before a larger step is tried.
  int32_t LargestKnown() const;

 private:
  static constexpr int kBuckets = 16 + 8 * 10;
  static constexpr double kMostPatience = 2;
  // Measurements after which a bucket's time is changed as a mean is, and tells drift.
  static constexpr int32_t kSettled = 8;
  struct Bucket {
    double us = 0;    // median of the first, then a mean from there on; before drift
    double rows = 0;  // mean
    int32_t count = 0;
    int64_t seen = 0;                      // the number of the last step in it
    double patience = kMostPatience;       // delays that are still put down to something else
    std::array<double, kSettled> first{};  // sorted; the first min(count, kSettled) steps
  };
  struct Point {
    double rows = 0;
    double us = 0;
    double weight = 0;
  };
  static int BucketOf(int32_t rows);
  static void Add(double own_us, Bucket* bucket);
  static bool IsDelay(double us, double expected_us, Bucket* bucket);
  void MakeCurve();

  std::array<Bucket, kBuckets> buckets_{};
  std::vector<Point> curve_;   // of the fresh buckets, by rows; before drift
  std::vector<Point> pooled_;  // scratch of MakeCurve
  double drift_ = 1;
  double noise_ = 0.03;  // mean deviation of a step from its bucket's mean, relative
  int64_t steps_ = 0;
};

}  // namespace heddle::scheduler
