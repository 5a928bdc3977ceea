// Cuts the attention of a step into tiles: host work that depends on lengths, done once per step
// and per kind of attention.
//
// Sequences with few packed rows (decoding) get tiles of 16 rows and are split along their context,
// so that a few long sequences fill the device as well as many short ones. Others (prompt chunks,
// trees of drafts) get tiles of 64 or 128 rows. These are split only if multiprocessors would
// otherwise be without work, or if one would run long after the others: a short chunk of a long
// prompt. Tiles that see the most keys come first, because the blocks that end last should be
// short.
//
// If sequences of one tile each begin with the same pages, those pages are read once: there are
// tiles of all their rows over the shared keys, and tiles of each one's rows over the rest, merged
// by their log-sum-exp like splits.
//
// Rows that read lists of positions (AttentionArgs::chosen) have tiles of their own: how many keys
// those have is known, which ones is not.
//
// Contexts made of pieces are cut at their borders where that matters (context_pieces.h). A range
// that rows see all of has a tile like those of shared prefixes, and all parts of a row are merged.
// If the workspace does not hold all of those at once, tiles run in rounds, and the parts of a row
// that are too many for one round in several, each of which goes on with the result before it.
//
// The splits of contexts depend on the whole batch: on CUDA devices a row's last bits may depend on
// the other rows (ops.h promises otherwise for the CPU only).
// Sources: Dao et al., "Flash-Decoding", 2023; Juravsky et al., "Hydragen", 2024.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/batch.h"
#include "kernels/cuda/attention/attention_halves.h"
#include "kernels/cuda/attention/attention_params.h"
#include "kernels/cuda/attention/context_pieces.h"

namespace heddle::kernels::cuda {

// Blocks of the flash kernels that a multiprocessor holds at once: prompt blocks have 74 to 87 KiB
// of shared memory each at head_dim 128, of 227. Three decoding blocks fit, but contexts are split
// for two, because more parts are more to merge. Of blocks with kHopperTileRows, one fits.
inline constexpr int32_t kBlocksPerMultiprocessor = 2;

inline constexpr int32_t kAnyRows = 0x7FFFFFFF;

// The inputs of the cut beside the batch.
struct AttentionGrouping {
  int32_t group = 1;  // query heads per KV head
  int32_t n_kv_heads = 1;
  int32_t head_dim = 1;
  int32_t prefill_rows = kPrefillTileRows;  // per tile
  int32_t layers = 0;                       // the layers' group, see KvCacheView::group
  int32_t window = 0;                       // AttentionArgs::window
  bool in_chunks = false;                   // AttentionArgs::in_chunks
  bool in_order = false;                    // AttentionArgs::in_order
  bool both_ways = false;                   // AttentionArgs::both_ways
  int32_t top_k = 0;  // AttentionArgs::chosen: rows that see more have a list of so many; 0: none
  bool shares_prefixes = false;  // kernels take tiles of shared rows and gain by it
  // Not 0: the cache has 8 bits and pages of so many positions, and prefill_rows is that of a
  // kernel that reads 16 bits. If copying the pages does not pay, tiles have kPrefillTileRows.
  int32_t widened_page_tokens = 0;
  // The kernel over copies can make queries into codes, and then reads keys where they are: in
  // steps whose prefill tiles are all of chunks of more than kMaxTreeRows rows: rows that decode,
  // share a prefix or verify drafts keep their queries, whatever runs beside them.
  bool copies_values_alone = false;
  bool decodes_in_wide_tiles = false;  // single rows of many heads get tiles of prefill_rows
  bool merges_in_tiles = false;        // blocks of decode tiles merge their own parts
  // Sequences with other numbers of rows have no tiles.
  int32_t least_rows = 0;
  int32_t most_rows = kAnyRows;
  // Tiles read pages of keys and values made of latents (attention_expand.cu): there are none where
  // that does not pay.
  bool expands = false;
  // Half of the workspace holds queries (Ops::Attention with half_keys or turns_queries).
  bool makes_queries = false;
  // The layer rotates queries further for pieces of contexts (AttentionArgs::rotation), and the
  // batch has some with a turn.
  bool turns_queries = false;
  bool of_logit_rows = false;  // the batch is that of the step's logit rows
  friend bool operator==(const AttentionGrouping&, const AttentionGrouping&) = default;
};

// Tiles and merges that run before the next round takes the memory of their partial results.
struct AttentionRound {
  int32_t decode = 0, prefill = 0, merges = 0;
};

struct AttentionPlan {
  std::vector<AttentionTile> decode;        // of kDecodeTileRows
  std::vector<AttentionTile> prefill;       // of prefill_rows
  std::vector<AttentionMerge> merges;       // in a launch behind all tiles
  std::vector<AttentionMerge> tile_merges;  // by the decode tiles that name them
  std::vector<int32_t> shared_rows;
  // [n_tokens] HostBatch::tree_mask without the rows of other chunks, or empty: no tree has any.
  std::vector<uint64_t> chunk_masks;
  int32_t n_partials = 0;
  int32_t prefill_rows = 0;  // per tile
  int32_t decode_rows = 0;   // kNarrowTileRows or kDecodeTileRows
  // Pages that are copied before prefill tiles read them (attention_widen.cu, attention_expand.cu):
  // pages of the cache
  // in the order of the copy, and for each span from first_wide_span on the page of the copy that
  // has its positions. Empty: no copy.
  std::vector<int32_t> wide_pages;
  bool codes_queries = false;  // the copies have values alone (AttentionGrouping)
  std::vector<int32_t> wide_of_span;
  int32_t first_wide_span = 0;
  std::vector<int32_t> expanded_rows;  // of the batch: those of the tiles, if the grouping expands
  // Queries of the tiles whose shared rows lie behind the sequences' rows: row i of these is the
  // (i + 1)th behind.
  std::vector<TurnedRow> turned_rows;
  std::vector<AttentionRound> later_rounds;  // where each begins in the lists above
  bool fits = true;                          // false: the workspace holds no two parts of a row
};

// The shortest part of a context (except the last): shorter parts spend their time on starting and
// merging. For tiles of 64 rows or more, whose partial results are larger, it is twice that.
inline constexpr int32_t kMinSplitKeys = 128;
inline constexpr int32_t kMinWideSplitKeys = 256;
// The fewest keys of a shared prefix.
inline constexpr int32_t kMinSharedKeys = 256;
// The fewest keys per block of the device that sharing must save in all: another launch and a merge
// take as long, some 4 us of 132 multiprocessors.
inline constexpr int32_t kMinSavedKeys = 128;

// Heads of a latent cache up to which a row is decoded in tiles of 16, each of which reads the
// keys: two of those take as long as one of 64, which is filled up with zeros.
inline constexpr int32_t kMostNarrowHeads = 32;

// Counters that merging in tiles may use: one for each merge and KV head.
inline constexpr int32_t kMaxMergeCounters = 4096;

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

// `batch` is the view of the grouping's layers (HostBatch::OfGroup).
AttentionPlan PlanAttention(const HostBatch& batch, const SequenceRange& sequences,
                            const AttentionGrouping& grouping, const AttentionBudget& budget);

}  // namespace heddle::kernels::cuda
