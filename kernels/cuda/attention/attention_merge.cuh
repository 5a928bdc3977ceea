// Merges attention over parts of a context by log-sum-exp: out = sum of part_i * exp(lse_i - lse),
// lse = log of the sum of exp(lse_i) and the sink. The parts of a shared prefix come after the
// sequence's own. For attention_merge.cu and the kernel that decodes.
//
// One warp takes one packed row. Its lanes take the weights of 32 parts at a time, one each, and
// then each its own columns of all those parts, 4 per load if head_dim allows it. A row so costs
// the latency of a few dependent loads, and not one per part and column.
#pragma once

#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/primitives/group.cuh"

namespace heddle::kernels::cuda::merge {

constexpr int kAtOnce = 8;  // parts whose loads are in flight together

// The parts of a packed row.
struct Parts {
  AttentionMerge merge;
  int row;  // row within the merge
  int kv_head;

  HEDDLE_DEVICE int count() const { return merge.own.count + merge.shared.count; }
  // Index of a partial result.
  HEDDLE_DEVICE int64_t Place(const AttentionParams& p, int i) const {
    const int shared = i - merge.own.count;
    const int first = shared < 0 ? merge.own.begin + i * merge.own.stride
                                 : merge.shared.begin + shared * merge.shared.stride;
    return PartialOf(p, first + row, kv_head);
  }
};

// Over all parts and the sink: the largest lse, and the sum of exp(lse - max).
HEDDLE_DEVICE Softmax TotalOf(const AttentionParams& p, const Parts& parts, float sink) {
  float max = sink;
  for (int i = Lane(); i < parts.count(); i += 32) {
    max = Max(max, p.partial_lse[parts.Place(p, i)]);
  }
  max = WarpMax(max);
  float sum = Lane() == 0 ? Exp(sink - max) : 0.0f;
  for (int i = Lane(); i < parts.count(); i += 32) {
    sum += Exp(p.partial_lse[parts.Place(p, i)] - max);
  }
  return {max, WarpSum(sum)};
}

// Adds columns [column, column + kWidth) of kAtOnce parts; lane i has the place and the weight of
// part i, which is 0 if there is none.
template <int kWidth>
HEDDLE_DEVICE void AddParts(const AttentionParams& p, int column, int64_t place, float weight,
                            int first, float (&values)[kWidth]) {
  Words<kWidth> words[kAtOnce];
  HEDDLE_UNROLL
  for (int i = 0; i < kAtOnce; ++i) {
    const int64_t from = Shuffle(place, first + i) * p.args.cache.head_dim + column;
    words[i] = *reinterpret_cast<const Words<kWidth>*>(p.partial_out + from);
  }
  HEDDLE_UNROLL
  for (int i = 0; i < kAtOnce; ++i) {
    const float its = Shuffle(weight, first + i);
    HEDDLE_UNROLL
    for (int j = 0; j < kWidth; ++j) values[j] += its * BitsToFloat(words[i].word[j]);
  }
}

// Every lane takes part in every round, because weights come by shuffle.
template <int kWidth, typename T>
HEDDLE_DEVICE void MergeColumns(const AttentionParams& p, const Parts& parts, const Softmax& total,
                                T* out) {
  const int dim = p.args.cache.head_dim;
  for (int base = 0; base < dim; base += 32 * kWidth) {
    const int column = base + Lane() * kWidth;
    const bool there = column < dim;
    const int read = there ? column : 0;
    float values[kWidth] = {};
    for (int first = 0; first < parts.count(); first += 32) {
      const int left = parts.count() - first;
      const int64_t place = parts.Place(p, Lane() < left ? first + Lane() : first);
      const float weight = Lane() < left ? Exp(p.partial_lse[place] - total.max) : 0.0f;
      for (int i = 0; i < left && i < 32; i += kAtOnce) {
        AddParts(p, read, place, weight, i, values);
      }
    }
    if (!there) continue;
    Group<T, kWidth> group;
    HEDDLE_UNROLL
    for (int j = 0; j < kWidth; ++j) group.item[j] = RoundTo(values[j] / total.sum, T());
    StoreGroup(out + column, group);
  }
}

// Merges the parts of a packed row into the row of `out`. REQUIRES: kWidth 1, or head_dim and rows
// of out in multiples of it, out aligned to it.
template <int kWidth, typename T>
HEDDLE_DEVICE void MergeRow(const AttentionParams& p, const SequenceView& s, const Parts& parts,
                            T) {
  const AttentionArgs& a = p.args;
  const int packed = parts.merge.first + parts.row;
  const int head = s.Head(packed);
  const Softmax total = TotalOf(p, parts, a.sinks != nullptr ? a.sinks[head] : -Infinity());
  T* out = a.out.row<T>(s.Row(packed)) + static_cast<int64_t>(head) * a.cache.head_dim;
  MergeColumns<kWidth>(p, parts, total, out);
  if (a.lse != nullptr && Lane() == 0) {
    a.lse[s.Row(packed) * a.n_heads + head] = total.max + Log(total.sum);
  }
}

// Merges the parts of a packed row into a partial result, which may be one of them: a lane reads
// the columns that it writes before it does. REQUIRES: kWidth 1, or head_dim in multiples of it.
template <int kWidth>
HEDDLE_DEVICE void MergeIntoPart(const AttentionParams& p, const Parts& parts) {
  const Softmax total = TotalOf(p, parts, -Infinity());
  const int64_t place = PartialOf(p, parts.merge.into + parts.row, parts.kv_head);
  MergeColumns<kWidth>(p, parts, total, p.partial_out + place * p.args.cache.head_dim);
  SyncWarp();  // the part's old weight has been read
  if (Lane() == 0) p.partial_lse[place] = total.max + Log(total.sum);
}

}  // namespace heddle::kernels::cuda::merge
