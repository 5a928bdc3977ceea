#include "scheduler/cost_model.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace heddle::scheduler {

namespace {

// Scales the features of a usual step to about one, which keeps the sums well conditioned.
constexpr double kRowScale = 1.0 / 128;
constexpr double kAttendedScale = 1.0 / (128 * 1024);
constexpr double kSequenceScale = 1.0 / 32;

// A step's weight halves after 350 similar steps, which take seconds on a small machine.
constexpr double kForgetting = 0.998;
// Limit on the rounds of descent per step, and the relative change that ends it earlier. Few rounds
// are needed once the coefficients are known.
constexpr int kRounds = 400;
constexpr double kSettled = 1e-5;
// The order in which coefficients are fitted to a step. Rows come first, so that on a machine of
// which little is known rows do not seem to cost nothing.
constexpr int kOrder[] = {1, 2, 3, 0};
// A step that took more than this many times its prediction was held up by something else.
constexpr double kOutlier = 4.0;

}  // namespace

CostModel::Vector CostModel::Features(const StepCost& cost) {
  return {1.0, static_cast<double>(cost.rows) * kRowScale,
          static_cast<double>(cost.attended) * kAttendedScale,
          static_cast<double>(cost.sequences) * kSequenceScale};
}

void CostModel::Observe(const StepCost& cost, double us) {
  if (is_ready()) us = std::min(us, kOutlier * std::max(PredictUs(cost), 1.0));
  ++observations_;
  const Vector x = Features(cost);
  Forget(x);
  for (int i = 0; i < kFeatures; ++i) {
    for (int j = 0; j < kFeatures; ++j) moments_[i][j] += x[i] * x[j];
    targets_[i] += x[i] * us;
  }
  for (int round = 0; round < kRounds && Descend() > kSettled; ++round) {
  }
}

// Forgets part of what is known in the direction of x and nothing in other directions.
void CostModel::Forget(const Vector& x) {
  Vector along{};  // moments * x
  double spread = 0, target = 0;
  for (int i = 0; i < kFeatures; ++i) {
    for (int j = 0; j < kFeatures; ++j) along[i] += moments_[i][j] * x[j];
    spread += x[i] * along[i];
    target += x[i] * targets_[i];
  }
  if (spread <= 0) return;
  const double share = (1 - kForgetting) / spread;
  for (int i = 0; i < kFeatures; ++i) {
    for (int j = 0; j < kFeatures; ++j) moments_[i][j] -= share * along[i] * along[j];
    targets_[i] -= share * along[i] * target;
  }
}

// Sets each coefficient in turn to its best non-negative value given the others. Returns the
// largest change, relative to the largest coefficient.
double CostModel::Descend() {
  double largest = 0, change = 0;
  for (const int i : kOrder) {
    if (moments_[i][i] <= 0) continue;
    double rest = targets_[i];
    for (int j = 0; j < kFeatures; ++j) {
      if (j != i) rest -= moments_[i][j] * coefficients_[j];
    }
    const double before = std::exchange(coefficients_[i], std::max(0.0, rest / moments_[i][i]));
    change = std::max(change, std::fabs(coefficients_[i] - before));
    largest = std::max(largest, coefficients_[i]);
  }
  return largest > 0 ? change / largest : 0;
}

double CostModel::PredictUs(const StepCost& cost) const {
  const Vector x = Features(cost);
  double us = 0;
  for (int i = 0; i < kFeatures; ++i) us += x[i] * coefficients_[i];
  return us;
}

double CostModel::RowUs(int64_t context) const {
  return coefficients_[1] * kRowScale +
         coefficients_[2] * kAttendedScale * static_cast<double>(context);
}

int32_t CostModel::RowsWithin(double target_us, const StepCost& base, int64_t context) const {
  const double left = target_us - PredictUs(base);
  if (left <= 0) return 0;
  // Row i of n attends to i positions more than the first: n rows take n * first + n * n * growth /
  // 2.
  const double growth = coefficients_[2] * kAttendedScale;
  const double first = RowUs(context) + growth / 2;
  const double divisor = first + std::sqrt(first * first + 2 * growth * left);
  constexpr double kMost = std::numeric_limits<int32_t>::max();
  if (divisor <= 0) return static_cast<int32_t>(kMost);
  return static_cast<int32_t>(std::min(2 * left / divisor, kMost));
}

}  // namespace heddle::scheduler
