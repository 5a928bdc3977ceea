// Merges attention over parts of a context by log-sum-exp: out = sum of part_i * exp(lse_i - lse),
// lse = log of the sum of exp(lse_i) and the sink. The parts of a shared prefix come after the
// sequence's own.
//
// One warp takes one packed row. Its lanes take the weights of 32 parts at a time, one each, and
// then each its own columns of all those parts, 4 per load if head_dim allows it. A row so costs
// the latency of a few dependent loads, and not one per part and column.
#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/primitives/group.cuh"
#include "kernels/cuda/primitives/launch.cuh"

namespace heddle::kernels::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kAtOnce = 8;  // parts whose loads are in flight together

struct MergeParams {
  AttentionParams attention;
  const AttentionMerge* merges;
};

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

template <typename T, int kWidth>
HEDDLE_KERNEL AttentionMergeKernel(HEDDLE_PARAMS(MergeParams, m)) {
  StartInTurn();
  const AttentionParams& p = m.attention;
  const AttentionArgs& a = p.args;
  const Parts parts = {m.merges[BlockX()], BlockZ() * kWarps + WarpIndex(), BlockY()};
  const SequenceView s(p, parts.merge.seq, parts.kv_head, false);
  const int packed = parts.merge.first + parts.row;
  if (!s.Has(packed)) return;
  const int head = s.Head(packed);
  const Softmax total = TotalOf(p, parts, a.sinks != nullptr ? a.sinks[head] : -Infinity());
  T* out = a.out.row<T>(s.Row(packed)) + static_cast<int64_t>(head) * a.cache.head_dim;
  MergeColumns<kWidth>(p, parts, total, out);
  if (a.lse != nullptr && Lane() == 0) {
    a.lse[s.Row(packed) * a.n_heads + head] = total.max + Log(total.sum);
  }
}

}  // namespace

Error LaunchAttentionMerge(const AttentionParams& params, const AttentionMerge* merges,
                           int32_t n_merges, DType act, Stream stream) {
  const LaunchShape shape = {.grid_x = n_merges,
                             .grid_y = params.args.cache.n_kv_heads,
                             .grid_z = kDecodeTileRows / kWarps,
                             .threads = 32 * kWarps};
  const MergeParams merge = {params, merges};
  const Tensor& out = params.args.out;
  return ForActivation(act, [&]<typename T>(T) {
    const bool wide = params.args.cache.head_dim % 4 == 0 && out.stride % 4 == 0 &&
                      reinterpret_cast<uintptr_t>(out.data) % (4 * sizeof(T)) == 0;
    return wide ? Launch(AttentionMergeKernel<T, 4>, shape, stream, merge)
                : Launch(AttentionMergeKernel<T, 1>, shape, stream, merge);
  });
}

}  // namespace heddle::kernels::cuda
