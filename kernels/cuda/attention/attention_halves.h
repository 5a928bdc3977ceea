// Launch parameters of the kernels that make queries: those that meet half of each key
// (attention_halves.cu), and those that are rotated further (attention_turns.cu).
// Rules for all launchers are in runtime/stream.h.
#pragma once

#include <cstdint>

#include "kernels/cuda/runtime/stream.h"
#include "kernels/dtype.h"
#include "kernels/tensor.h"

namespace heddle::kernels::cuda {

inline constexpr int32_t kMaxTurned = 256;  // frequencies; those of rotation are as many

// Whole queries of queries that meet half of each key (AttentionArgs::half_keys): the halves of
// heads first_head, first_head + 1 ... of `halves`, with zeros in front of those of odd heads and
// behind those of even ones. `whole` [rows, heads * 2 * half_dim] is dense and has the first head
// at column 0.
struct WholeQueriesParams {
  Tensor halves;  // [rows, all heads * half_dim]
  Tensor whole;
  int64_t half_dim = 0;
  int64_t first_head = 0;
};
Error LaunchWholeQueries(const WholeQueriesParams& params, DType act, Stream stream);

// Row `row` of a batch, rotated further by `turn` positions.
struct TurnedRow {
  int32_t row = 0;
  int32_t turn = 0;
};

// Rows [first_row, first_row + n_copied) of `from` as they are, and behind them turned[0, n_turned)
// of its rows. Only the first 2 * half dimensions of a head are rotated. Angles are computed in
// F64.
struct TurnQueriesParams {
  Tensor from;  // [rows, heads * head_dim]
  Tensor to;    // [n_copied + n_turned, heads * head_dim]
  const TurnedRow* turned = nullptr;
  int32_t n_turned = 0;
  int32_t first_row = 0;
  int32_t n_copied = 0;
  int32_t head_dim = 0;
  int32_t half = 0;         // frequencies
  int32_t interleaved = 0;  // RopeLayout::kInterleaved
  float inv_freq[kMaxTurned] = {};
};
Error LaunchTurnQueries(const TurnQueriesParams& params, DType act, Stream stream);

}  // namespace heddle::kernels::cuda
