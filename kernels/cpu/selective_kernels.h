// Kernels for selective scans on Vec (RecurrenceKernels::select): rows pass one by one through
// states that are held in registers. REQUIRES: one of the vec_*.h headers and vec_math.h included
// before this one.
#pragma once

#include <cstdint>

#include "kernels/cpu/recurrence_math.h"
#include "kernels/cpu/recurrence_table.h"
#include "kernels/cpu/vec/vec_tail.h"

namespace heddle::kernels::cpu {
namespace {

// Vectors of channels whose rows are prepared before the states take them in, and gated behind
// that: rows of one vector, or vectors of one row, so that their long chains of operations run side
// by side.
constexpr int kPreparedVectors = kPartRows;

struct PreparedRows {
  alignas(64) float steps[kPreparedVectors * kLanes];  // dt log2(e)
  alignas(64) float updates[kPreparedVectors * kLanes];
  alignas(64) float sums[kPreparedVectors * kLanes];  // of S q
};

// Row t of lanes [c, c + kLanes), to place i.
inline void PrepareSelected(const SelectRowsArgs& args, int64_t c, int32_t t, int i,
                            PreparedRows* to) {
  const int lanes = LanesAt(c, args.channels);
  const Vec given = LoadUpTo(args.steps + t * args.step_stride + c, lanes);
  const Vec step = args.kept ? given : Softplus(given);
  const Vec value = LoadUpTo(args.values + t * args.value_stride + c, lanes);
  if (args.kept_steps) {
    StoreUpTo(args.kept_steps + t * args.kept_stride + c, step, lanes);
    StoreUpTo(args.kept_values + t * args.kept_stride + c, value, lanes);
  }
  Store(to->steps + i * kLanes, step * Set(kLog2OfE));
  Store(to->updates + i * kLanes, step * value);
  Store(to->sums + i * kLanes, Zero());
}

// Elements [d, d + States) of the states of one vector of channels over all rows, which have the
// places from i on.
template <int States>
inline void AdvanceStates(const SelectRowsArgs& args, int64_t c, int32_t d, int i,
                          PreparedRows* rows) {
  const int64_t at =
      (c / kBlockChannels * args.state_dim + d) * kBlockChannels + c % kBlockChannels;
  const float* decay = args.decay + at;
  float* state = args.state + at;
  Vec held[States];
#pragma GCC unroll 16
  for (int s = 0; s < States; ++s) held[s] = Load(state + s * kBlockChannels);
  const float* key = args.keys + d;
  const float* query = args.kept ? key : args.queries + d;
  for (int32_t t = 0; t < args.rows; ++t, ++i, key += args.key_stride, query += args.key_stride) {
    const Vec step = Load(rows->steps + i * kLanes);
    const Vec update = Load(rows->updates + i * kLanes);
    Vec sum = Load(rows->sums + i * kLanes);
#pragma GCC unroll 16
    for (int s = 0; s < States; ++s) {
      const Vec factor = PowerOfTwo(step * Load(decay + s * kBlockChannels));
      held[s] = Fma(Set(key[s]), update, factor * held[s]);
      sum = Fma(Set(query[s]), held[s], sum);
    }
    Store(rows->sums + i * kLanes, sum);
  }
#pragma GCC unroll 16
  for (int s = 0; s < States; ++s) Store(state + s * kBlockChannels, held[s]);
}

// States that are held in registers over all rows, beside the constants of their powers: those of
// all published models with 32 registers.
constexpr int kHeldStates = kLanes == 16 ? 16 : 4;

inline void AdvanceAll(const SelectRowsArgs& args, int64_t c, int i, PreparedRows* rows) {
  int32_t d = 0;
  for (; d + kHeldStates <= args.state_dim; d += kHeldStates) {
    AdvanceStates<kHeldStates>(args, c, d, i, rows);
  }
  for (; d < args.state_dim; ++d) AdvanceStates<1>(args, c, d, i, rows);
}

inline void FinishSelected(const SelectRowsArgs& args, int64_t c, int32_t t, int i,
                           const PreparedRows& rows) {
  const int lanes = LanesAt(c, args.channels);
  const Vec skip = args.skip ? LoadUpTo(args.skip + c, lanes) : Zero();
  const Vec value = LoadUpTo(args.values + t * args.value_stride + c, lanes);
  Vec out = Fma(skip, value, Load(rows.sums + i * kLanes));
  if (args.gates) out = out * Silu(LoadUpTo(args.gates + t * args.step_stride + c, lanes));
  StoreUpTo(args.out + t * args.value_stride + c, out, lanes);
}

inline void SelectRows(const SelectRowsArgs& args) {
  PreparedRows rows;
  const int64_t vectors_at_once = kPreparedVectors / args.rows;
  for (int64_t first = 0; first < args.channels; first += vectors_at_once * kLanes) {
    const int64_t left = args.channels - first;
    const int64_t most = vectors_at_once * kLanes;
    const int64_t end = first + (left < most ? left : most);
    int i = 0;
    for (int64_t c = first; c < end; c += kLanes) {
      for (int32_t t = 0; t < args.rows; ++t) PrepareSelected(args, c, t, i++, &rows);
    }
    i = 0;
    for (int64_t c = first; c < end; c += kLanes, i += args.rows) AdvanceAll(args, c, i, &rows);
    if (args.kept) continue;
    i = 0;
    for (int64_t c = first; c < end; c += kLanes) {
      for (int32_t t = 0; t < args.rows; ++t) FinishSelected(args, c, t, i++, rows);
    }
  }
}

}  // namespace
}  // namespace heddle::kernels::cpu
