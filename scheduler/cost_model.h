// Predicts how long a step takes, from the steps that were: a linear model of rows, of the
// attention's work and of sequences, fitted online to least squares with forgetting, so that it
// follows a machine whose speed changes. The scheduler chooses a step's token budget by it.
//
// No coefficient is negative: they are times, and where steps are too alike to tell them apart (a
// full machine plans one like the other) plain least squares would take from one what it gives to
// another and predict nonsense for any other step. A step takes the place of earlier ones that were
// like it; what is known of others is not forgotten for it (directional forgetting). Coordinate
// descent starts from where the coefficients were, so that what steps say nothing about stays.
//
// Unit: microseconds. Thread-safety: none; owned by the scheduler.
// Sources:
// - Franc, Hlavac and Navara, "Sequential Coordinate-Wise Algorithm for the Non-negative Least
//   Squares Problem", 2005
// - Cao and Schwartz, "A Directional Forgetting Algorithm Based on the Decomposition of the
//   Information Matrix", 2000
#pragma once

#include <array>
#include <cstdint>

namespace heddle::scheduler {

struct StepCost {
  int64_t rows = 0;
  int64_t attended = 0;  // positions read, summed over rows
  int64_t sequences = 0;
};

class CostModel {
 public:
  // A step of `cost` took `us` > 0.
  void Observe(const StepCost& cost, double us);

  // Never negative. Meaningless before is_ready().
  double PredictUs(const StepCost& cost) const;

  // How many more rows of one chunk, the first of which attends to `context` positions and each to
  // one more than the one before it, fit beside `base` into `target_us`.
  int32_t RowsWithin(double target_us, const StepCost& base, int64_t context) const;

  // What one more row that attends to `context` positions adds to a step.
  double RowUs(int64_t context) const;

  bool is_ready() const { return observations_ >= kWarmUp; }

 private:
  static constexpr int kFeatures = 4;
  static constexpr int kWarmUp = 8;  // twice the coefficients
  using Vector = std::array<double, kFeatures>;

  static Vector Features(const StepCost& cost);
  void Forget(const Vector& x);
  double Descend();

  Vector coefficients_{};
  std::array<Vector, kFeatures> moments_{};  // sums of x x^T over the steps, forgetting
  Vector targets_{};                         // of x times the step's time
  int64_t observations_ = 0;
};

}  // namespace heddle::scheduler
