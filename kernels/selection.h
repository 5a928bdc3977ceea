// Attention over chosen positions: an indexer, small heads beside a layer's own, scores all
// positions that a row sees, and the row attends to the best of them.
//   score(t, p) = sum over heads h of weight[t, h] * max(0, q[t, h] . k[p])
// A factor above zero that all scores share changes no choice, and is left out. Keys are one vector
// per position, in a cache of their own (KvCacheView with keys alone).
//
// A row that sees top_k positions or fewer reads all of them, as it would without an indexer: its
// attention is that of any other row, bit for bit. Of equal scores the earlier position wins, and
// NaN is below all others, so that a choice depends on the row's context alone.
// Source: DeepSeek-AI, "DeepSeek-V3.2", 2025 (lightning indexer).
#pragma once

#include <cstdint>

#include "kernels/kv_cache.h"
#include "kernels/tensor.h"

namespace heddle::kernels {

// For each row of a batch: the number of chosen positions, and then these, ascending, as places in
// the list of spans of the row's sequence. A number of 0: the row reads all that it sees.
struct ChosenPlaces {
  const int32_t* rows = nullptr;  // [n, stride()]; nullptr: nothing is chosen
  int32_t top_k = 0;

  constexpr int64_t stride() const { return 1 + int64_t{top_k}; }
  const int32_t* row(int64_t t) const { return rows + t * stride(); }
  int32_t count(int64_t t) const { return *row(t); }
  const int32_t* places(int64_t t) const { return row(t) + 1; }
};

// If one row of a tree (HostBatch::tree_mask) needs a list, all rows of its sequence have one.
struct SelectArgs {
  Tensor q;        // [n, n_heads * head_dim], rotated
  Tensor weights;  // [n, n_heads] F32
  int32_t n_heads = 0;
  KvCacheView cache;  // n_kv_heads 1; the keys of this step's rows are written
  int32_t top_k = 0;
  int32_t* out = nullptr;  // [n, 1 + top_k], ChosenPlaces::rows
};

}  // namespace heddle::kernels
