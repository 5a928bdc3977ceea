// Common parts of the attention kernels: packed rows, the keys that they may see, and where keys
// are stored.
#pragma once

#include "kernels/batch.h"
#include "kernels/cuda/attention/attention_params.h"
#include "kernels/cuda/attention/key_place.cuh"
#include "kernels/cuda/device_batch.h"
#include "kernels/cuda/primitives/primitives.cuh"

namespace heddle::kernels::cuda {

// The view that one block has of a sequence, for one KV head.
struct SequenceView {
  int32_t seq;
  int32_t kv_head;
  int32_t group;    // query heads per KV head
  int32_t q_begin;  // row of the batch
  int32_t rows;
  int32_t context;
  int32_t window;
  bool in_chunks;  // AttentionArgs::in_chunks, with a window
  bool both_ways;  // AttentionArgs::both_ways
  bool tree;       // the rows are a tree of drafts; batch.h

  // `may_be_tree`: the batch has a tree_mask. A kernel that is compiled without trees has no code
  // for them.
  HEDDLE_DEVICE SequenceView(const AttentionParams& p, int32_t s, int32_t head, bool may_be_tree)
      : seq(s), kv_head(head), group(p.args.n_heads / p.args.cache.n_kv_heads) {
    q_begin = p.batch.q_begin[s];
    rows = p.batch.q_begin[s + 1] - q_begin;
    context = p.batch.context_len[s];
    window = p.args.window;
    in_chunks = p.args.in_chunks && window > 0;
    both_ways = p.args.both_ways;
    tree = may_be_tree && p.batch.tree_mask[q_begin] != 0;
  }
  // The rows of a tile. Shared rows come after all its keys, as if those were their context.
  HEDDLE_DEVICE SequenceView(const AttentionParams& p, const AttentionTile& tile, int32_t head,
                             bool may_be_tree)
      : SequenceView(p, tile.seq, head, may_be_tree) {
    if (tile.n_shared == 0) return;
    rows = tile.n_shared;
    context = tile.key_end + rows;
    window = 0;
    in_chunks = tree = false;
  }
  HEDDLE_DEVICE bool Has(int packed) const { return packed < rows * group; }
  // The row of the batch. REQUIRES: not shared.
  HEDDLE_DEVICE int64_t Row(int packed) const { return q_begin + packed / group; }
  HEDDLE_DEVICE int Head(int packed) const { return kv_head * group + packed % group; }
  // The index of the rows' first own key.
  HEDDLE_DEVICE int OwnKeys() const { return context - rows; }
  // A packed row sees keys [FirstKey, EndKey); in a tree, its mask restricts its own keys.
  HEDDLE_DEVICE int EndKey(int packed) const {
    if (tree) return context;
    const int place = OwnKeys() + packed / group;
    if (!both_ways) return place + 1;
    return window > 0 && place + window < context ? place + window : context;
  }
  HEDDLE_DEVICE int FirstKey(const DeviceBatch& batch, int packed) const {
    if (window <= 0) return 0;
    const int row = packed / group < rows ? packed / group : rows - 1;
    const int seen = in_chunks ? batch.positions[q_begin + row] % window + 1 : window;
    int first = OwnKeys() + 1 + packed / group - seen;
    if (tree) {
      const int depth = batch.positions[q_begin + row] - batch.positions[q_begin];
      first = OwnKeys() + (depth + 1 < seen ? depth + 1 - seen : 0);
    }
    return first > 0 ? first : 0;
  }
  // Bit j: the packed row sees key OwnKeys() + j. REQUIRES: a tree.
  HEDDLE_DEVICE uint64_t TreeMask(const DeviceBatch& batch, int packed) const {
    return Has(packed) ? batch.tree_mask[Row(packed)] : 0;
  }
};

// The rows of a tile, of which there may be fewer than the sequence has, or one whose list says
// what keys it sees (AttentionTile::is_listed): those are then counted in the list's order.
HEDDLE_DEVICE SequenceView ViewOfTile(const AttentionParams& p, const AttentionTile& tile,
                                      int32_t head, bool may_be_tree) {
  SequenceView s(p, tile, head, may_be_tree);
  if (tile.row_end == 0) return s;
  s.context = tile.is_listed ? tile.key_end : s.context - (s.rows - tile.row_end);
  s.rows = tile.row_end;
  if (!tile.is_listed) return s;
  s.window = 0;
  s.in_chunks = s.tree = false;
  return s;
}

// Whether the mask shows the key at `own` = key - OwnKeys(), which may be any number.
HEDDLE_DEVICE bool TreeSees(uint64_t mask, int own) {
  return own < 0 || (own < kMaxTreeRows && (mask >> own & 1) != 0);
}

// The row of the batch that holds the query of a packed row of a tile.
HEDDLE_DEVICE int64_t QueryRow(const AttentionParams& p, const AttentionTile& tile,
                               const SequenceView& s, int packed) {
  return tile.n_shared > 0 ? p.shared_rows[tile.shared_begin + packed / s.group] : s.Row(packed);
}

// The scale of a row of a kInt8 cache, which may lie at any address; 1 for the other types.
template <typename Kv>
HEDDLE_DEVICE float ScaleOfKey(const void*, const KeyPlace&, Kv) {
  return 1.0f;
}
HEDDLE_DEVICE float ScaleOfKey(const void* array, const KeyPlace& place, Int8) {
  const uint8_t* at = static_cast<const uint8_t*>(array) + place.scale;
  return BitsToFloat(at[0] | static_cast<uint32_t>(at[1]) << 8 |
                     static_cast<uint32_t>(at[2]) << 16 | static_cast<uint32_t>(at[3]) << 24);
}

template <typename Kv>
HEDDLE_DEVICE const Kv* RowOfKey(const void* array, const KeyPlace& place) {
  return reinterpret_cast<const Kv*>(static_cast<const uint8_t*>(array) + place.row);
}

// Calls fn with a value of the cache's storage type. REQUIRES: it is not F32.
template <typename Fn>
auto ForNarrowKvType(DType dtype, Fn fn) {
  switch (dtype) {
    case DType::kF16:
      return fn(Half());
    case DType::kInt8:
      return fn(Int8());
    case DType::kF8E4M3:
      return fn(Float8());
    default:
      return fn(BFloat16());
  }
}

// Calls fn with a value of the cache's storage type.
template <typename Fn>
auto ForKvType(DType dtype, Fn fn) {
  return dtype == DType::kF32 ? fn(float()) : ForNarrowKvType(dtype, fn);
}

// The types that matrix instructions compute with, by the cache's type.
template <typename Kv>
struct Computed {
  using Type = Kv;
};
template <>
struct Computed<Float8> {
  using Type = Half;
};
template <>
struct Computed<Int8> {
  using Type = BFloat16;
};

// A unit of queries in BF16 as one that is multiplied with keys.
HEDDLE_DEVICE Vec16 UnitAs(const Vec16& unit, BFloat16) { return unit; }
HEDDLE_DEVICE Vec16 UnitAs(const Vec16& unit, Half type) {
  Vec16 out;
  HEDDLE_UNROLL
  for (int i = 0; i < 4; ++i) {
    out.word[i] =
        Pack2(LowFloat(unit.word[i], BFloat16()), HighFloat(unit.word[i], BFloat16()), type);
  }
  return out;
}

// The span that holds a key of a sequence. REQUIRES: key < context length.
HEDDLE_DEVICE int FindSpan(const DeviceBatch& batch, int seq, int key) {
  int low = batch.span_begin[seq];
  int high = batch.span_begin[seq + 1];
  while (high - low > 1) {  // the last span that does not begin after `key`
    int middle = (low + high) / 2;
    if (batch.span_first[middle] <= key) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// Walks the span list of a sequence: the slot of each key in turn. Keys only move forward.
class KeyCursor {
 public:
  // REQUIRES: key < context length.
  HEDDLE_DEVICE KeyCursor(const DeviceBatch& batch, int seq, int key)
      : span_(FindSpan(batch, seq, key)) {}
  // The place of `key` of a KV head.
  HEDDLE_DEVICE KeyPlace Find(const DeviceBatch& batch, const KvCacheView& cache, int key,
                              int kv_head) {
    while (key >= batch.span_first[span_] + batch.span_tokens[span_]) ++span_;
    return PlaceOfKey(cache, batch.span_page[span_], key - batch.span_first[span_], kv_head);
  }

 private:
  int span_;
};

// The place of the key at `place` of a context. No search is needed if all spans before it are
// full.
HEDDLE_DEVICE KeyPlace PlaceInContext(const DeviceBatch& batch, const KvCacheView& cache, int seq,
                                      int place, int kv_head) {
  int span = batch.span_begin[seq] + place / cache.page_tokens;
  const int first = batch.span_first[span];
  if (place < first || place >= first + batch.span_tokens[span]) {
    span = FindSpan(batch, seq, place);
  }
  return PlaceOfKey(cache, batch.span_page[span], place - batch.span_first[span], kv_head);
}

// The keys of a tile in turn: those of its sequence, or of its row's list, which WaitForPrevious
// makes readable. In two registers.
class KeyFinder {
 public:
  // REQUIRES: key < context length.
  HEDDLE_DEVICE KeyFinder(const AttentionParams& p, const AttentionTile& tile, int key)
      : list_(tile.is_listed ? p.batch.q_begin[tile.seq] + tile.row_end - 1 : -1),
        at_(tile.is_listed ? tile.seq : FindSpan(p.batch, tile.seq, key)) {}
  // Keys only move forward.
  HEDDLE_DEVICE KeyPlace Find(const AttentionParams& p, int key, int kv_head) {
    if (list_ >= 0) {
      const ChosenPlaces& chosen = p.args.chosen;
      const int place = chosen.rows[list_ * chosen.stride() + 1 + key];
      return PlaceInContext(p.batch, p.args.cache, at_, place, kv_head);
    }
    while (key >= p.batch.span_first[at_] + p.batch.span_tokens[at_]) ++at_;
    return PlaceOfKey(p.args.cache, p.batch.span_page[at_], key - p.batch.span_first[at_], kv_head);
  }

 private:
  int list_;  // the row of the batch that has it; -1: none
  int at_;    // the span of the last key; with a list the sequence
};

inline constexpr float kLog2E = 1.44269504f;
inline constexpr float kLn2 = 0.69314718f;

// A running softmax: sum of 2^(score - max) over the keys so far. Scores are in units of log2.
struct Softmax {
  float max;
  float sum;
  HEDDLE_DEVICE static Softmax Empty() { return {-Infinity(), 0.0f}; }
  // The base of 2^(score - max), which is 0 while nothing has been seen.
  HEDDLE_DEVICE static float Base(float max) { return max == -Infinity() ? 0.0f : max; }
};

HEDDLE_DEVICE float ScaledScore(const AttentionArgs& a, float dot) {
  float score = dot * a.scale;
  if (a.softcap > 0) score = a.softcap * Tanh(score / a.softcap);
  return score * kLog2E;
}

// Index of a partial result of a KV head.
HEDDLE_DEVICE int64_t PartialOf(const AttentionParams& p, int partial, int kv_head) {
  return static_cast<int64_t>(partial) * p.args.cache.n_kv_heads + kv_head;
}

// The keys that the tile needs: those of its range that some of its rows sees.
struct KeyRange {
  int begin;
  int end;
  HEDDLE_DEVICE KeyRange(const DeviceBatch& batch, const SequenceView& s, const AttentionTile& tile,
                         int rows) {
    int last = s.rows * s.group - 1;
    if (tile.first + rows - 1 < last) last = tile.first + rows - 1;
    const int first = s.FirstKey(batch, tile.first);
    begin = tile.key_begin > first ? tile.key_begin : first;
    end = tile.key_end < s.EndKey(last) ? tile.key_end : s.EndKey(last);
  }
};

// The end of a packed row: values in `value(c)` were summed against `all`.
struct RowEnd {
  float inverse;  // of the softmax sum
  float lse;
};
HEDDLE_DEVICE RowEnd EndOf(const AttentionParams& p, const AttentionTile& tile, int head,
                           Softmax all) {
  if (tile.partial < 0 && p.args.sinks != nullptr) {
    const float sink = p.args.sinks[head] * kLog2E;
    const float max = Max(all.max, sink);
    const float sum = all.sum * Exp2(all.max - max);
    // Values are summed against all.max: the change of base is folded into their factor.
    const float total = sum + Exp2(sink - max);
    return {Exp2(all.max - max) / total, (max + Log2(total)) * kLn2};
  }
  return {all.sum > 0 ? 1.0f / all.sum : 0.0f, (all.max + Log2(all.sum)) * kLn2};
}

HEDDLE_DEVICE void StoreLse(const AttentionParams& p, const SequenceView& s,
                            const AttentionTile& tile, int row, float lse) {
  const int packed = tile.first + row;
  if (tile.partial >= 0) {
    p.partial_lse[PartialOf(p, tile.partial + row, s.kv_head)] = lse;
  } else if (p.args.lse != nullptr) {
    p.args.lse[s.Row(packed) * p.args.n_heads + s.Head(packed)] = lse;
  }
}

}  // namespace heddle::kernels::cuda
