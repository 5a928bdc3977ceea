// How the attention of a step is cut into tiles: host work that depends on lengths, done once per
// step and per kind of attention.
//
// Sequences with few packed rows (decoding) get tiles of 16 rows and are split along their context,
// so that a few long sequences fill the device as well as many short ones. Others (prompt chunks,
// trees of drafts) get tiles of 64 or 128 rows, and these are split only where they would leave
// multiprocessors without work or one of them would be worked on long after the others: a short
// chunk of a long prompt. Those that see most keys come first: blocks that end last should be
// short.
//
// Where sequences of one tile each begin with the same pages, those are read once: tiles of all
// their rows over the shared keys, and tiles of each one's rows over the rest; merged by their
// log-sum-exp as splits are.
//
// Where contexts are split depends on the whole batch: on CUDA devices a row's last bits may depend
// on what it is computed with (ops.h promises otherwise of the CPU only).
// Sources: Dao et al., "Flash-Decoding", 2023; Juravsky et al., "Hydragen", 2024.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/batch.h"
#include "kernels/cuda/attention/attention_params.h"

namespace heddle::kernels::cuda {

// Blocks of the flash kernels that a multiprocessor holds at once: those of prompts have 74 to 87
// KiB of shared memory each at head_dim 128, of 227. Three of decoding fit; contexts are split for
// two, as more parts are more to merge. Of those with kHopperTileRows, one.
inline constexpr int32_t kBlocksPerMultiprocessor = 2;

// What the cut depends on besides the batch.
struct AttentionGrouping {
  int32_t group = 1;  // query heads per KV head
  int32_t n_kv_heads = 1;
  int32_t head_dim = 1;
  int32_t prefill_rows = kPrefillTileRows;  // of a tile
  int32_t layers = 0;                       // KvCacheView::group: whose spans
  int32_t window = 0;                       // AttentionArgs::window
  bool shares_prefixes = false;             // kernels take tiles of shared rows, and gain by them
  // Not 0: the cache has 8 bits, pages of so many positions, and prefill_rows are of a kernel that
  // reads 16. Where copying the pages does not pay, tiles have kPrefillTileRows.
  int32_t widened_page_tokens = 0;
  friend bool operator==(const AttentionGrouping&, const AttentionGrouping&) = default;
};

struct AttentionPlan {
  std::vector<AttentionTile> decode;   // of kDecodeTileRows
  std::vector<AttentionTile> prefill;  // of prefill_rows
  std::vector<AttentionMerge> merges;
  std::vector<int32_t> shared_rows;
  int32_t n_partials = 0;
  int32_t prefill_rows = 0;  // of a tile
  int32_t decode_rows = 0;   // kNarrowTileRows or kDecodeTileRows
  // What prefill tiles read is copied first (attention_widen.cu): pages of the cache in the order
  // of the copy, and for each span from first_wide_span on the page of the copy that has its
  // positions. Empty: nothing is copied.
  std::vector<int32_t> wide_pages;
  std::vector<int32_t> wide_of_span;
  int32_t first_wide_span = 0;
};

// No part of a context is shorter than this (but the last): shorter parts spend their time on
// starting and merging. Of tiles of 64 rows or more, whose partial results are larger: twice that.
inline constexpr int32_t kMinSplitKeys = 128;
inline constexpr int32_t kMinWideSplitKeys = 256;
// A prefix is shared from so many keys on.
inline constexpr int32_t kMinSharedKeys = 256;
// ... if all that is shared saves each block of the device so many keys: another launch and a merge
// take as long, some 4 us of 132 multiprocessors.
inline constexpr int32_t kMinSavedKeys = 128;

// Sequences [begin, end) of a batch.
struct SequenceRange {
  int32_t begin = 0;
  int32_t end = 0;
};

struct AttentionBudget {
  int32_t multiprocessors = 1;
  int32_t max_partials = 0;  // AttentionPlan::n_partials
  int64_t max_wide_pages = 0;
};

// `batch` is as the grouping's layers see it (HostBatch::OfGroup).
AttentionPlan PlanAttention(const HostBatch& batch, const SequenceRange& sequences,
                            const AttentionGrouping& grouping, const AttentionBudget& budget);

}  // namespace heddle::kernels::cuda
