#include "scheduler/cost_model.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace heddle::scheduler {

namespace {

// Brings the features to about one for a usual step, which keeps the recursion well conditioned.
constexpr double kRowScale = 1.0 / 128;
constexpr double kAttendedScale = 1.0 / (128 * 1024);
constexpr double kSequenceScale = 1.0 / 32;

// A step's weight halves every 350 steps: seconds on a small machine.
constexpr double kForgetting = 0.998;
// Before the first step nothing is known: the prior is wide beside any step time in microseconds.
constexpr double kInitialVariance = 1e4;
// A step of more than so many times its prediction was held up by something else.
constexpr double kOutlier = 4.0;

}  // namespace

CostModel::CostModel() {
  for (int i = 0; i < kFeatures; ++i) covariance_[i][i] = kInitialVariance;
}

CostModel::Vector CostModel::Features(const StepCost& cost) {
  return {1.0, static_cast<double>(cost.rows) * kRowScale,
          static_cast<double>(cost.attended) * kAttendedScale,
          static_cast<double>(cost.sequences) * kSequenceScale};
}

void CostModel::Observe(const StepCost& cost, double us) {
  if (is_ready()) us = std::min(us, kOutlier * std::max(PredictUs(cost), 1.0));
  ++observations_;
  const Vector x = Features(cost);
  Vector gain{};  // covariance * x
  double spread = 0, error = us, trace = 0;
  for (int i = 0; i < kFeatures; ++i) {
    for (int j = 0; j < kFeatures; ++j) gain[i] += covariance_[i][j] * x[j];
    spread += x[i] * gain[i];
    error -= x[i] * coefficients_[i];
    trace += covariance_[i][i];
  }
  const double forgetting = trace < kInitialVariance ? kForgetting : 1.0;
  for (int i = 0; i < kFeatures; ++i) {
    coefficients_[i] += gain[i] * error / (forgetting + spread);
    for (int j = 0; j < kFeatures; ++j) {
      covariance_[i][j] =
          (covariance_[i][j] - gain[i] * gain[j] / (forgetting + spread)) / forgetting;
    }
  }
}

double CostModel::PredictUs(const StepCost& cost) const {
  const Vector x = Features(cost);
  double us = 0;
  for (int i = 0; i < kFeatures; ++i) us += x[i] * coefficients_[i];
  return std::max(us, 0.0);
}

double CostModel::RowUs(int64_t context) const {
  return coefficients_[1] * kRowScale +
         coefficients_[2] * kAttendedScale * static_cast<double>(context);
}

int32_t CostModel::RowsWithin(double target_us, const StepCost& base, int64_t context) const {
  const double left = target_us - PredictUs(base);
  if (left <= 0) return 0;
  // Row i of n attends to i positions more: n rows take n * first + n * n * growth / 2.
  const double growth = std::max(0.0, coefficients_[2] * kAttendedScale);
  const double first = RowUs(context) + growth / 2;
  const double divisor = first + std::sqrt(std::max(0.0, first * first + 2 * growth * left));
  constexpr double kMost = std::numeric_limits<int32_t>::max();
  if (divisor <= 0) return static_cast<int32_t>(kMost);
  return static_cast<int32_t>(std::min(2 * left / divisor, kMost));
}

}  // namespace heddle::scheduler
