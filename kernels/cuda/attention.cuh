// What the attention kernels share: packed rows, what they may see, and where keys lie.
#pragma once

#include "kernels/cuda/params.h"
#include "kernels/cuda/primitives.cuh"

namespace heddle::kernels::cuda {

// A sequence as one block sees it, for one KV head.
struct SequenceView {
  int32_t seq;
  int32_t kv_head;
  int32_t group;    // query heads per KV head
  int32_t q_begin;  // row of the batch
  int32_t rows;
  int32_t context;
  int32_t window;

  HEDDLE_DEVICE SequenceView(const AttentionParams& p, int32_t s, int32_t head)
      : seq(s), kv_head(head), group(p.args.n_heads / p.args.cache.n_kv_heads) {
    q_begin = p.batch.q_begin[s];
    rows = p.batch.q_begin[s + 1] - q_begin;
    context = p.batch.context_len[s];
    window = p.args.window;
  }
  HEDDLE_DEVICE bool Has(int packed) const { return packed < rows * group; }
  HEDDLE_DEVICE int64_t Row(int packed) const { return q_begin + packed / group; }
  HEDDLE_DEVICE int Head(int packed) const { return kv_head * group + packed % group; }
  // Keys [FirstKey, EndKey) are visible to a packed row.
  HEDDLE_DEVICE int EndKey(int packed) const { return context - rows + 1 + packed / group; }
  HEDDLE_DEVICE int FirstKey(int packed) const {
    int first = window > 0 ? EndKey(packed) - window : 0;
    return first > 0 ? first : 0;
  }
};

// Walks the span list of a sequence: the slot of each key in turn. Keys only move forward.
class KeyCursor {
 public:
  // REQUIRES: key < context length.
  HEDDLE_DEVICE KeyCursor(const DeviceBatch& batch, int seq, int key) {
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
    span_ = low;
  }
  // Element offset in the cache of `key` of a KV head.
  HEDDLE_DEVICE int64_t Offset(const DeviceBatch& batch, const KvCacheView& cache, int key,
                               int kv_head) {
    while (key >= batch.span_first[span_] + batch.span_tokens[span_]) ++span_;
    const int64_t page = batch.span_page[span_];
    const int64_t place = key - batch.span_first[span_];
    return page * cache.page_elements() +
           (static_cast<int64_t>(kv_head) * cache.page_tokens + place) * cache.head_dim;
  }

 private:
  int span_;
};

inline constexpr float kLog2E = 1.44269504f;
inline constexpr float kLn2 = 0.69314718f;

// A running softmax: sum of 2^(score - max) over the keys so far. Scores are in units of log2.
struct Softmax {
  float max;
  float sum;
  HEDDLE_DEVICE static Softmax Empty() { return {-Infinity(), 0.0f}; }
  // What 2^(score - max) is taken against while nothing has been seen.
  HEDDLE_DEVICE static float Base(float max) { return max == -Infinity() ? 0.0f : max; }
};

HEDDLE_DEVICE float ScaledScore(const AttentionArgs& a, float dot) {
  float score = dot * a.scale;
  if (a.softcap > 0) score = a.softcap * Tanh(score / a.softcap);
  return score * kLog2E;
}

// Index of partial results of packed row `row` of a decode tile.
HEDDLE_DEVICE int64_t PartialRow(const AttentionParams& p, int slot, int kv_head, int row) {
  return (static_cast<int64_t>(slot) * p.args.cache.n_kv_heads + kv_head) * kDecodeTileRows + row;
}

}  // namespace heddle::kernels::cuda
