// Predicts how long a step takes, from the steps that were: a linear model of rows, of the
// attention's work and of sequences, fitted online by recursive least squares with forgetting, so
// that it follows a machine whose speed changes. The scheduler chooses a step's token budget by it.
//
// Unit: microseconds. Forgetting stops while the steps are too alike to tell the coefficients
// apart (decodes only): otherwise the estimate would drift on noise.
// Source: Ljung, "System Identification", 2nd ed., section 11.2.
// Thread-safety: none; owned by the scheduler.
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
  CostModel();

  // A step of `cost` took `us` > 0.
  void Observe(const StepCost& cost, double us);

  // Never negative. Meaningless before is_ready().
  double PredictUs(const StepCost& cost) const;

  // How many more rows of one chunk, the first of which attends to `context` positions and each to
  // one more than the one before it, fit beside `base` into `target_us`.
  int32_t RowsWithin(double target_us, const StepCost& base, int64_t context) const;

  // What one more row that attends to `context` positions adds to a step. May be negative while
  // little is known.
  double RowUs(int64_t context) const;

  bool is_ready() const { return observations_ >= kWarmUp; }

 private:
  static constexpr int kFeatures = 4;
  static constexpr int kWarmUp = 8;  // twice the coefficients
  using Vector = std::array<double, kFeatures>;

  static Vector Features(const StepCost& cost);

  Vector coefficients_{};
  std::array<Vector, kFeatures> covariance_{};
  int64_t observations_ = 0;
};

}  // namespace heddle::scheduler
