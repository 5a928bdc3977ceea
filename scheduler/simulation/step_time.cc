#include "scheduler/simulation/step_time.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace heddle::scheduler {
namespace {

// Positions that the rows read together: the last row's window, and one more for each row before
// it.
double PositionsRead(int64_t window, int64_t rows, int64_t context) {
  return static_cast<double>(window == 0 ? context : std::min(context, window + rows - 1));
}

// Row i of n (from 0) sees min(context - n + 1 + i, window) positions; the sum over the rows.
double Pairs(int64_t window, int64_t rows, int64_t context) {
  const auto n = static_cast<double>(rows);
  const auto first = static_cast<double>(context - rows + 1);
  if (window == 0 || window >= context) return n * first + n * (n - 1) / 2;
  // The first rows may see less than a window.
  const double below = std::clamp(static_cast<double>(window) - first, 0.0, n);
  return below * first + below * (below - 1) / 2 + (n - below) * static_cast<double>(window);
}

double Interpolated(const std::vector<MeasuredRows>& measured, int64_t rows) {
  const auto above =
      std::lower_bound(measured.begin(), measured.end(), rows,
                       [](const MeasuredRows& point, int64_t value) { return point.rows < value; });
  if (above == measured.begin()) return above->us;
  const MeasuredRows& low = above[-1];
  if (above == measured.end()) {
    return low.us * static_cast<double>(rows) / static_cast<double>(low.rows);
  }
  const double share =
      static_cast<double>(rows - low.rows) / static_cast<double>(above->rows - low.rows);
  return low.us + share * (above->us - low.us);
}

}  // namespace

double MatricesUs(const StepTimeModel& model, int64_t rows, int64_t logit_rows) {
  if (!model.measured.empty()) return Interpolated(model.measured, rows);
  double read_us = model.weights_us;
  if (model.experts_us > 0) {
    // Rows choose their experts independently, each expert with the same probability.
    read_us += model.experts_us * (1 - std::pow(model.expert_miss, static_cast<double>(rows)));
  }
  return std::max(read_us, static_cast<double>(rows) * model.row_us +
                               static_cast<double>(logit_rows) * model.logit_row_us);
}

double AttentionUs(const StepTimeModel& model, int64_t num_tokens, int64_t context_tokens) {
  double us = 0;
  for (const AttentionCost& layers : model.attention) {
    us += std::max(layers.position_us * PositionsRead(layers.window, num_tokens, context_tokens),
                   layers.pair_us * Pairs(layers.window, num_tokens, context_tokens));
  }
  return us;
}

int64_t LogitRows(const engine::StepPlan& plan) {
  auto rows = static_cast<int64_t>(plan.scores.size());
  for (const engine::SampleRow& sample : plan.samples) rows += sample.num_rows;
  return rows;
}

double StepUs(const StepTimeModel& model, const engine::StepPlan& plan) {
  const double load_us = model.adapter_page_us * static_cast<double>(plan.adapter_loads.size());
  if (plan.token_ids.empty()) return load_us;
  const auto rows = static_cast<int64_t>(plan.token_ids.size());
  double us = model.fixed_us + model.sum_row_us * static_cast<double>(rows) +
              MatricesUs(model, rows, LogitRows(plan));
  for (const engine::SequenceSlice& slice : plan.sequences) {
    us += AttentionUs(model, slice.num_tokens, slice.context_tokens);
  }
  return load_us + std::max(us, 1.0);
}

}  // namespace heddle::scheduler
