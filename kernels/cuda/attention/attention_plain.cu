// Attention for any shape and type, in F32.
#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/primitives/launch.cuh"

namespace heddle::kernels::cuda {
namespace {

constexpr int kWarps = 4;

// Computes one packed row against the tile's keys: every warp takes each kWarps-th key and keeps
// its own softmax and sums in shared memory, [kWarps, head_dim].
template <typename T, typename Kv>
HEDDLE_DEVICE Softmax WalkKeys(const AttentionParams& p, const SequenceView& s,
                               const AttentionTile& tile, int packed, Shared<float> sums) {
  const AttentionArgs& a = p.args;
  const int dim = a.cache.head_dim;
  const T* q =
      a.q.row<T>(QueryRow(p, tile, s, packed)) + static_cast<int64_t>(s.Head(packed)) * dim;
  const int first_key = s.FirstKey(p.batch, packed);
  const int end_key = s.EndKey(packed);
  const int begin = tile.key_begin > first_key ? tile.key_begin : first_key;
  const int end = tile.key_end < end_key ? tile.key_end : end_key;
  for (int i = Lane(); i < dim; i += 32) sums.Set(i, 0.0f);
  Softmax softmax = Softmax::Empty();
  if (begin + WarpIndex() >= end) return softmax;
  const uint64_t tree = s.tree ? s.TreeMask(p.batch, packed) : ~uint64_t{0};
  const DistanceBias& bias = a.bias;
  const float* biases = bias.table == nullptr ? nullptr
                                              : bias.table + s.Head(packed) * bias.stride() +
                                                    bias.reach - (s.OwnKeys() + packed / s.group);
  KeyFinder finder(p, tile, begin + WarpIndex());
  for (int key = begin + WarpIndex(); key < end; key += kWarps) {
    if (s.tree && !TreeSees(tree, key - s.OwnKeys())) continue;
    const KeyPlace place = finder.Find(p, key, s.kv_head);
    const Kv* k = RowOfKey<Kv>(a.cache.keys, place);
    const Kv* v = RowOfKey<Kv>(a.cache.values, place);
    float dot = 0;
    for (int i = Lane(); i < dim; i += 32) dot += ToFloat(q[i]) * ToFloat(k[i]);
    float score = ScaledScore(a, WarpSum(dot) * ScaleOfKey(a.cache.keys, place, Kv()));
    if (biases != nullptr) score += biases[key] * kLog2E;
    const float max = Max(softmax.max, score);
    const float shrink = Exp2(softmax.max - max);
    const float weight = Exp2(score - max);
    softmax = {max, softmax.sum * shrink + weight};
    const float v_weight = weight * ScaleOfKey(a.cache.values, place, Kv());
    for (int i = Lane(); i < dim; i += 32) {
      sums.Set(i, sums.Get(i) * shrink + v_weight * ToFloat(v[i]));
    }
  }
  return softmax;
}

// The whole row's softmax from the warps' in `states` [kWarps, 2], including the sink if it belongs
// to this part.
HEDDLE_DEVICE Softmax Combine(Shared<float> states, float sink) {
  Softmax all = {sink, 0.0f};
  for (int w = 0; w < kWarps; ++w) all.max = Max(all.max, states.Get(2 * w));
  const float base = Softmax::Base(all.max);
  all.sum = Exp2(sink - base);
  for (int w = 0; w < kWarps; ++w) {
    all.sum += states.Get(2 * w + 1) * Exp2(states.Get(2 * w) - base);
  }
  return all;
}

template <typename T>
HEDDLE_DEVICE void StoreRow(const AttentionParams& p, const SequenceView& s,
                            const AttentionTile& tile, int packed, Shared<float> states,
                            Shared<float> sums) {
  const AttentionArgs& a = p.args;
  const int dim = a.cache.head_dim;
  const int head = s.Head(packed);
  const bool direct = tile.partial < 0;
  const bool has_sink = direct && a.sinks != nullptr;
  const Softmax all = Combine(states, has_sink ? a.sinks[head] * kLog2E : -Infinity());
  const float base = Softmax::Base(all.max);
  const int64_t part = direct ? 0 : PartialOf(p, tile.partial + packed - tile.first, s.kv_head);
  for (int i = ThreadX(); i < dim; i += ThreadCount()) {
    float sum = 0;
    for (int w = 0; w < kWarps; ++w) {
      sum += sums.Get(w * dim + i) * Exp2(states.Get(2 * w) - base);
    }
    const float value = all.sum > 0 ? sum / all.sum : 0.0f;
    if (direct) {
      a.out.row<T>(s.Row(packed))[static_cast<int64_t>(head) * dim + i] = RoundTo(value, T());
    } else {
      p.partial_out[part * dim + i] = value;
    }
  }
  if (ThreadX() != 0) return;
  const float lse = (all.max + Log2(all.sum)) * kLn2;
  if (!direct) p.partial_lse[part] = lse;
  if (direct && a.lse != nullptr) a.lse[s.Row(packed) * a.n_heads + head] = lse;
}

template <typename T, typename Kv>
HEDDLE_KERNEL AttentionPlainKernel(HEDDLE_PARAMS(AttentionParams, p)) {
  StartInTurn();
  const int dim = p.args.cache.head_dim;
  SharedArena arena;
  Shared<float> states = arena.Take<float>(2 * kWarps);
  Shared<float> sums = arena.Take<float>(kWarps * dim);
  const AttentionTile tile = p.tiles[BlockX()];
  const SequenceView s = ViewOfTile(p, tile, BlockY(), p.batch.tree_mask != nullptr);
  const int packed = tile.first + BlockZ();
  if (!s.Has(packed)) return;
  Softmax mine = WalkKeys<T, Kv>(p, s, tile, packed, sums.From(WarpIndex() * dim));
  if (Lane() == 0) {
    states.Set(2 * WarpIndex(), mine.max);
    states.Set(2 * WarpIndex() + 1, mine.sum);
  }
  SyncThreads();
  StoreRow<T>(p, s, tile, packed, states, sums);
}

}  // namespace

Error LaunchAttentionPlain(const AttentionParams& params, DType act, Stream stream) {
  const LaunchShape shape = {
      .grid_x = params.n_tiles,
      .grid_y = params.args.cache.n_kv_heads,
      .grid_z = params.tile_rows,
      .threads = 32 * kWarps,
      .shared_bytes = SharedBytesFor<float>(2 * kWarps) +
                      SharedBytesFor<float>(kWarps * params.args.cache.head_dim)};
  return ForActivation(act, [&]<typename T>(T) {
    return ForKvType(params.args.cache.dtype, [&]<typename Kv>(Kv) {
      return Launch(AttentionPlainKernel<T, Kv>, shape, stream, params);
    });
  });
}

}  // namespace heddle::kernels::cuda
