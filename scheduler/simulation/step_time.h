// Models how long a step takes on a machine that is not there: a few rates, from the data sheet of
// named hardware (a roofline) or from measurements of a real machine.
//
// A step costs a fixed time, then the matrices, then attention. The matrices cost the slower of
// reading the weights once and computing all rows, or the measured time for that many rows.
// Attention costs, per kind of layer, the slower of reading every visible position once per
// sequence and computing every pair of a row and a position that it sees.
// Unit: microseconds. Plain data; no state.
// Source: Williams et al., "Roofline", CACM 2009.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/step.h"

namespace heddle::scheduler {

// The attention of all layers that share a window.
struct AttentionCost {
  int32_t window = 0;      // positions that a row sees, itself included; 0: all
  double position_us = 0;  // reading keys and values of one position
  double pair_us = 0;      // arithmetic of one row on one position
};

// A measurement: a step of `rows` rows took `us` without its attention.
struct MeasuredRows {
  int64_t rows = 0;
  double us = 0;
};

struct StepTimeModel {
  double fixed_us = 0;         // launches, sampling, planning
  double weights_us = 0;       // reading the weights that every step needs
  double experts_us = 0;       // reading all experts; a step reads those that some row is sent to
  double expert_miss = 1;      // share of the experts that one row is not sent to
  double row_us = 0;           // arithmetic of one row in all matrices but the head
  double logit_row_us = 0;     // arithmetic of one row in the head
  double adapter_page_us = 0;  // loading one page of an adapter
  double sum_row_us = 0;       // adding up what ranks have of one row, in all layers
  std::vector<AttentionCost> attention;
  // Ascending in rows, not descending in us. If not empty, it replaces weights_us, row_us and
  // logit_row_us: linear between points, flat below the first, proportional to the rows beyond the
  // last.
  std::vector<MeasuredRows> measured;
};

// The way of rows of activations to the next stage of a pipeline, and from the last one back to the
// first.
struct LinkTimeModel {
  double latency_us = 0;
  double row_us = 0;  // of each row
};

// Time that so many rows take from stage to stage.
inline double HopUs(const LinkTimeModel& link, int64_t rows) {
  return rows == 0 ? 0 : link.latency_us + link.row_us * static_cast<double>(rows);
}

// The rows of the plan that are drawn from or scored.
int64_t LogitRows(const engine::StepPlan& plan);

// The time of the plan's loads of adapters, and of its rows, which take at least 1. O(sequences).
double StepUs(const StepTimeModel& model, const engine::StepPlan& plan);

// Time of the matrices for `rows` rows, `logit_rows` of which go through the head.
double MatricesUs(const StepTimeModel& model, int64_t rows, int64_t logit_rows);

// Time of attention of `num_tokens` rows at the end of a context of `context_tokens` positions.
double AttentionUs(const StepTimeModel& model, int64_t num_tokens, int64_t context_tokens);

}  // namespace heddle::scheduler
