// Predicts how long a step takes from earlier steps: a linear model of rows, attention work and
// sequences, fitted online by least squares with forgetting, so that it follows a machine whose
// speed changes. The scheduler uses it to choose a step's token budget.
//
// Coefficients are times, so none is negative. Steps are often too alike to tell the coefficients
// apart (a busy machine plans similar steps), and plain least squares would then take from one
// coefficient what it gives to another and mispredict any other step. A new step replaces the
// weight of earlier similar steps only; knowledge about other steps is kept (directional
// forgetting). Coordinate descent starts from the previous coefficients, so that those on which new
// steps have no bearing stay.
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

  StepCost& operator+=(const StepCost& other) {
    rows += other.rows;
    attended += other.attended;
    sequences += other.sequences;
    return *this;
  }
};

class CostModel {
 public:
  // Records that a step of `cost` took `us` > 0.
  void Observe(const StepCost& cost, double us);

  // Never negative. Meaningless before is_ready().
  double PredictUs(const StepCost& cost) const;

  // The same without what a step costs however many rows it has.
  double AddedUs(const StepCost& cost) const { return PredictUs(cost) - PredictUs({}); }

  // Rows of one chunk that fit beside `base` into `target_us`. The chunk's first row attends to
  // `context` positions, each later row to one more.
  int32_t RowsWithin(double target_us, const StepCost& base, int64_t context) const;

  // Time that one more row, which attends to `context` positions, adds to a step.
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
  Vector targets_{};                         // sums of x times the step's time
  int64_t observations_ = 0;
};

}  // namespace heddle::scheduler
