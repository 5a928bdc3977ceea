// Parameters of both kernels of a recurrence (kGatedDelta, kMamba2): the numbers of its shape, and
// where things are in a page of snapshots (RecurrenceState).
#pragma once

#include <cstdint>

#include "kernels/cuda/state/state_params.h"
#include "kernels/cuda/state/state_slices.cuh"

namespace heddle::kernels::cuda {

struct RecurrenceParams {
  StateBatch batch;
  StatePages pages;
  StateConv conv;
  Tensor out;
  const float* decay = nullptr;
  const float* step_bias = nullptr;
  const float* skip = nullptr;
  const float* norm = nullptr;
  const float* mixed = nullptr;  // [n, conv.channels] q, k and v, or nullptr
  // Offsets in a page, in floats.
  int64_t state_at = 0;
  int64_t updates_at = 0;
  int64_t decays_at = 0;
  int64_t keys_at = 0;
  // Columns of args.in, in elements.
  int64_t gate_column = 0;
  int64_t beta_column = 0;
  int64_t step_column = 0;
  int64_t keys = 0;
  int64_t values = 0;
  int64_t norm_width = 0;
  int32_t n_heads = 0;
  int32_t n_key_heads = 0;
  int32_t key_dim = 0;
  int32_t value_dim = 0;
  float min_step = 0;
  float max_step = 0;
  float norm_eps = 0;
  bool delta = false;
  bool tiled = false;
  bool norm_per_value = false;
  bool gates_first = false;
};

inline RecurrenceParams ParamsOf(const StateBatch& batch, const RecurrenceArgs& args,
                                 const float* mixed) {
  const RecurrenceShape& shape = args.shape;
  const RecurrenceState layout(shape);
  return {.batch = batch,
          .pages = PagesOf(args.cache, args.page_tokens),
          .conv = ConvOf(args, layout),
          .out = args.out,
          .decay = args.decay,
          .step_bias = args.step_bias,
          .skip = args.skip,
          .norm = args.norm,
          .mixed = mixed,
          .state_at = layout.state,
          .updates_at = layout.updates,
          .decays_at = layout.decays,
          .keys_at = layout.keys,
          .gate_column = shape.gate_column(),
          .beta_column = shape.beta_column(),
          .step_column = shape.step_column(),
          .keys = shape.keys(),
          .values = shape.values(),
          .norm_width = args.norm == nullptr ? shape.values() : args.norm_width,
          .n_heads = shape.n_heads,
          .n_key_heads = shape.n_key_heads,
          .key_dim = shape.key_dim,
          .value_dim = shape.value_dim,
          .min_step = args.min_step,
          .max_step = args.max_step,
          .norm_eps = args.norm_eps,
          .delta = shape.rule == RecurrenceRule::kGatedDelta,
          .tiled = shape.tiled,
          .norm_per_value = args.norm_per_value,
          .gates_first = args.gates_first};
}

// Rows of its head before the part that a position is in: pages have two parts of a head.
HEDDLE_DEVICE int64_t PartOf(int head, int32_t offset) {
  return (2 * static_cast<int64_t>(head) + offset / kScanRows % 2) * kScanRows;
}

// The sums of g that a page keeps of the part that a position is in.
HEDDLE_DEVICE float* DecaysAt(const RecurrenceParams& p, int64_t page, int head, int32_t offset) {
  return PageOf(p.pages, page) + p.decays_at + PartOf(head, offset);
}

// A row's g, from its step, and the gain of u, from its beta (delta rule).
struct RowStep {
  float decay;
  float gain;
};
// REQUIRES: delta == p.delta. `beta` is not of kMamba2.
template <typename T>
HEDDLE_DEVICE RowStep StepFrom(const RecurrenceParams& p, T step_of, T beta, int head, bool delta) {
  const float step = Softplus(ToFloat(step_of) + p.step_bias[head]);
  if (delta) return {p.decay[head] * step, Sigmoid(ToFloat(beta))};
  float gain = step < p.min_step ? p.min_step : step;
  gain = gain > p.max_step ? p.max_step : gain;
  return {p.decay[head] * gain, gain};
}
template <typename T>
HEDDLE_DEVICE RowStep StepOf(const RecurrenceParams& p, int64_t t, int head, bool delta) {
  const T* row = p.conv.in.row<T>(t);
  return StepFrom<T>(p, row[p.step_column + head], delta ? row[p.beta_column + head] : T(), head,
                     delta);
}

// Added to the squares of the delta rule's keys and queries, whose length becomes 1.
inline constexpr float kUnitEps = 1e-6f;

// 1 / length of a key of kGatedDelta, for each lane's share of its squares.
HEDDLE_DEVICE float InverseLength(float squares) { return Rsqrt(WarpSum(squares) + kUnitEps); }

}  // namespace heddle::kernels::cuda
