// How the attention of a step is cut into tiles: host work that depends on lengths, done once per
// step and per kind of head grouping.
//
// Sequences with few packed rows (decoding) get tiles of 16 rows and are split along their context,
// so that a few long sequences fill the device as well as many short ones; others (prompt chunks)
// get tiles of 64 or 128 rows over the whole context, those that see most keys first: blocks that
// end last should be short.
// Source: Dao et al., "Flash-Decoding", 2023.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/batch.h"
#include "kernels/cuda/params.h"

namespace heddle::kernels::cuda {

// What the cut depends on besides the batch.
struct AttentionGrouping {
  int32_t group = 1;  // query heads per KV head
  int32_t n_kv_heads = 1;
  int32_t prefill_rows = kPrefillTileRows;  // of a tile
  int32_t layers = 0;                       // KvCacheView::group: whose spans
  friend bool operator==(const AttentionGrouping&, const AttentionGrouping&) = default;
};

struct AttentionPlan {
  std::vector<AttentionTile> decode;
  std::vector<AttentionTile> prefill;
  std::vector<AttentionMerge> merges;
  int32_t n_slots = 0;
};

// No part of a context is shorter than this (but the last): shorter parts spend their time on
// starting and merging.
inline constexpr int32_t kMinSplitKeys = 128;

// Sequences [begin, end) of a batch.
struct SequenceRange {
  int32_t begin = 0;
  int32_t end = 0;
};

// `batch` is as the grouping's layers see it (HostBatch::OfGroup). `target_blocks` is how many
// blocks fill the device; at most `max_slots` partial results are used.
AttentionPlan PlanAttention(const HostBatch& batch, const SequenceRange& sequences,
                            const AttentionGrouping& grouping, int32_t target_blocks,
                            int32_t max_slots);

}  // namespace heddle::kernels::cuda
