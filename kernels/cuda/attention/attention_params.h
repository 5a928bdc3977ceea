// Launch parameters of the kernels for attention, rotation and the KV cache. Rules for all
// launchers are in runtime/stream.h.
#pragma once

#include <cstdint>

#include "kernels/cuda/device_batch.h"
#include "kernels/cuda/norm_adapters.h"
#include "kernels/cuda/runtime/stream.h"
#include "kernels/dtype.h"
#include "kernels/kv_cache.h"
#include "kernels/ops.h"

namespace heddle::kernels::cuda {

inline constexpr int32_t kMaxFrequencies = 256;
struct RopeAnglesParams {
  DeviceBatch batch;
  int32_t half = 0;  // frequencies
  float scale = 1.0f;
  float* cos_sin = nullptr;
  float inv_freq[kMaxFrequencies];
};
Error LaunchRopeAngles(const RopeAnglesParams& params, Stream stream);
// The gains of the rows' adapters to the norms of single heads.
struct HeadNormAdapters {
  NormAdapters q_norm, k_norm;
};
Error LaunchRopeKvWrite(const DeviceBatch& batch, const RopeKvWriteArgs& args,
                        const HeadNormAdapters& adapters, DType act, Stream stream);

// A piece of attention: packed rows of a sequence against a range of its keys, for each KV head.
// Packed row p of a sequence is query row p / group, query head kv_head * group + p % group.
struct AttentionTile {
  int32_t seq;
  int32_t first;      // packed row
  int32_t key_begin;  // in the sequence's order; some row of the tile sees some of the range
  int32_t key_end;
  int32_t partial;  // index of its first row's partial result, followed by the other rows'; -1:
                    // these are all keys that the rows see, and the result goes to `out`
  // n_shared > 0: the tile's rows are not the sequence's but rows shared_rows[shared_begin,
  // shared_begin + n_shared) of the batch, packed in that order, and all of them see the whole
  // range of `seq`'s keys. Such results are partial ones.
  int32_t shared_begin = 0;
  int32_t n_shared = 0;
  // The last block to finish a part of AttentionParams::tile_merges[merge] merges them; -1: none.
  int32_t merge = -1;
  // > 0: of the sequence's rows the tile has none from this one on. Only kLatent, kWideHeads and
  // kPlain know it and what follows.
  int32_t row_end = 0;
  // The tile has row row_end - 1 alone, and its keys are those at [key_begin, key_end) of the row's
  // list (AttentionArgs::chosen).
  bool is_listed = false;
};
// Partial results begin + i * stride, i < count, belong to one packed row.
struct PartialRange {
  int32_t begin = 0;
  int32_t stride = 0;
  int32_t count = 0;
};
inline constexpr int32_t kDecodeTileRows = 16;
// kDecodeTileRows packed rows of a sequence, or fewer. The ranges are those of the first row; those
// of the following rows are adjacent.
struct AttentionMerge {
  int32_t seq;
  int32_t first;
  PartialRange own;
  PartialRange shared;  // of a prefix that other sequences share
  int32_t rows = kDecodeTileRows;
  // Not -1: the result, without sinks, becomes partial result `into`, followed by those of the
  // other rows; it may be one of those merged. Only the launch of its own knows it.
  int32_t into = -1;
};
inline constexpr int32_t kNarrowTileRows = 8;  // for decode tiles if all have so few rows
inline constexpr int32_t kPrefillTileRows = 64;
inline constexpr int32_t kHopperTileRows = 128;
// Stages of 64 keys and values in a block of attention_flash.cuh, all but one of them in flight. A
// multiprocessor holds three decoding blocks up to head_dim 128: 96 KiB in flight at 128, where
// latency requires 23.
constexpr int32_t FlashStages(int64_t kv_element_bytes, bool decodes, int32_t head_dim) {
  return kv_element_bytes == 1 && decodes && head_dim <= 128 ? 3 : 2;
}
inline constexpr int32_t kMaxAttentionHeadDim = 576;  // DeepSeek's latent and rotated dimensions
// Columns of the keys and values of each head that are made of latents: DeepSeek's.
inline constexpr int32_t kExpandedKeyDim = 192;  // the rotated ones first
inline constexpr int32_t kExpandedRotatedDim = 64;
inline constexpr int32_t kExpandedValueDim = 128;

struct AttentionParams {
  AttentionArgs args;
  DeviceBatch batch;
  const AttentionTile* tiles = nullptr;
  int32_t n_tiles = 0;
  int32_t tile_rows = 0;   // one of the constants above
  int32_t max_blocks = 0;  // that may run at once; 0: all of them
  const int32_t* shared_rows = nullptr;
  float* partial_out = nullptr;  // [partials, n_kv_heads, head_dim], normalised
  float* partial_lse = nullptr;  // [partials, n_kv_heads] natural logarithm
  // For decode tiles of kFlash; each merge's own parts are all there is to merge.
  const AttentionMerge* tile_merges = nullptr;
  int32_t* merge_counters = nullptr;  // [tile_merges, n_kv_heads] zeros, before and after
};
// Whether rows of `out` can be merged 4 columns at a time.
inline bool MergesWide(const AttentionArgs& args, int64_t element_bytes) {
  const Tensor& out = args.out;
  return args.cache.head_dim % 4 == 0 && out.stride % 4 == 0 &&
         reinterpret_cast<uintptr_t>(out.data) % static_cast<uintptr_t>(4 * element_bytes) == 0;
}
// Any shape and type, F32 arithmetic, one warp per key; exact but slow. The only one that has
// AttentionArgs::bias. Of tiles of shared rows it reads the keys once for each row.
Error LaunchAttentionPlain(const AttentionParams& params, DType act, Stream stream);
// Matrix instructions: BF16 activations; a cache of F16 or BF16 and head_dim a multiple of 8, or of
// 8 bits and head_dim a multiple of 16 (kInt8: pages of 4 positions at least); head_dim up to 256,
// q and out rows even.
Error LaunchAttentionFlash(const AttentionParams& params, Stream stream);
// The same for caches whose values are their keys, with head_dim up to kMaxAttentionHeadDim.
Error LaunchAttentionLatent(const AttentionParams& params, Stream stream);
// The same for other caches, with head_dim up to kWideHeadDim, where a block has the memory.
inline constexpr int32_t kWideHeadDim = 512;  // Gemma 4's layers without windows
Error LaunchAttentionWideHeads(const AttentionParams& params, Stream stream);
// Prefill tiles of kHopperTileRows on sm_90a; attention_choice.cc has its requirements. As many
// blocks as there are multiprocessors share the tiles.
Error LaunchAttentionHopper(const AttentionParams& params, int32_t num_multiprocessors,
                            Stream stream);
// Prefill tiles of kHopperTileRows on sm_90a over keys and values made of latents, in BF16: each
// head its own, page after page the rows of their positions, [n_pages * page_tokens, n_kv_heads,
// kExpandedKeyDim] and [..., kExpandedValueDim]. params.args.q has heads like the keys; rows of
// `out` and of partial results are as wide as values (cache.head_dim). params.batch.span_page names
// those pages.
struct ExpandedKeys {
  const void* keys = nullptr;
  const void* values = nullptr;
  int32_t n_pages = 0;
};
Error LaunchAttentionExpanded(const AttentionParams& params, const ExpandedKeys& expanded,
                              int32_t num_multiprocessors, Stream stream);
// The latents of pages[i] become rows i * page_tokens on of `to`, BF16 [n_pages * page_tokens,
// head_dim], with the first kExpandedRotatedDim columns behind the others. `from` is a cache with
// one KV head, of any type but kF32; rows of both are at multiples of 16 bytes (of 8 bits: of 8).
struct GatherLatentsParams {
  KvCacheView from;
  const int32_t* pages = nullptr;  // [n_pages]
  int32_t n_pages = 0;
  Tensor to;
};
Error LaunchGatherLatents(const GatherLatentsParams& params, Stream stream);
// For rows rows[i] and `n_heads` heads: the first `first_cols` columns of a head of `first` and the
// first `then_cols` ones of `then`, side by side in `to`. BF16; all in multiples of 8 columns.
struct JoinHeadsParams {
  const int32_t* rows = nullptr;  // [n_rows] the same of all three
  int32_t n_rows = 0;
  int32_t n_heads = 0;
  Tensor first, then, to;  // of the first head
  int32_t first_step = 0, then_step = 0, to_step = 0;
  int32_t first_cols = 0, then_cols = 0;
};
Error LaunchJoinHeads(const JoinHeadsParams& params, Stream stream);
// Page i of `to` becomes a copy of page pages[i] of `from`, of kF16 if `from` is of kF8E4M3 and of
// kBF16 if it is of kInt8. head_dim is a multiple of 16; rows of both are at multiples of 16 bytes.
struct WidenParams {
  KvCacheView from;
  KvCacheView to;                  // keys == nullptr: values alone are copied
  const int32_t* pages = nullptr;  // [n_pages]
  int32_t n_pages = 0;
};
Error LaunchWidenPages(const WidenParams& params, Stream stream);
Error LaunchAttentionMerge(const AttentionParams& params, const AttentionMerge* merges,
                           int32_t n_merges, DType act, Stream stream);

}  // namespace heddle::kernels::cuda
