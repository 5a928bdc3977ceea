// Paged attention of prompt chunks on matrix instructions, for the cases that attention_hopper.cuh
// does not handle, for trees of drafts, and for the rows of several sequences over a shared prefix.
//
// A block takes a tile of 64 packed rows (query rows x the query heads of one KV head) of one
// sequence, 16 for each of its 4 warps, and walks its keys 64 at a time with a running softmax (Dao
// et al. 2022). Keys and values come page by page through cp.async into stages of shared memory, so
// that the next keys are copied while these are computed. Rows of shared memory are padded by 16
// bytes: an odd number of 16-byte units, so that the eight rows of a matrix load are in different
// banks.
//
// Caches of 8 bits stay so in shared memory and become F16 (E4M3) or BF16 (int8, exact) in
// registers. A matrix load of 16-bit units then brings each lane twice as many columns as the
// instruction uses. Since sums over columns may be in any order, and columns of the output may be
// anywhere until they are stored, the even bytes feed one instruction and the odd bytes the next.
// Scales of int8 keys multiply scores, those of values multiply the softmax's weights.
#pragma once

#include "kernels/cuda/attention/attention_flash_stages.cuh"

namespace heddle::kernels::cuda {
namespace flash {

// The state of one warp along the keys: fragments of its 16 rows.
template <int kDim>
struct Running {
  uint32_t q[kDim / 16][4];
  float out[kDim / 8][4];
  float max[2];  // rows g and g + 8
  float sum[2];  // this lane's share
};

// q k^T of the warp's keys.
template <typename Kv, typename M, int kDepth>
HEDDLE_DEVICE void Dots(const M& memory, int at, const uint32_t (&q)[kDepth][4],
                        float (&scores)[M::L::kKeyTiles][4]) {
  using L = typename M::L;
  using Q = typename Computed<Kv>::Type;
  const int lane = Lane();
  const int row = at + (lane / 16 * 8 + lane % 8) * L::kStride + lane / 8 % 2 * L::kUnit;
  HEDDLE_UNROLL
  for (int d = 0; d < 8 * kDepth / L::kUnit; ++d) {
    HEDDLE_UNROLL
    for (int n = 0; n < L::kKeyTiles; n += 2) {
      uint32_t k[4];
      LoadMatrix4(k, memory.k, row + n * 8 * L::kStride + d * 2 * L::kUnit);
      if constexpr (L::kIsWide) {
        Mma16816(scores[n], q[d], {k[0], k[1]}, Q());
        Mma16816(scores[n + 1], q[d], {k[2], k[3]}, Q());
      } else {
        HEDDLE_UNROLL
        for (int i = 0; i < 4; ++i) {
          uint32_t b[2];
          EvenAndOdd(k[i], b[0], b[1], Kv());
          Mma16816(scores[n + i / 2], q[2 * d + i % 2], b, Q());
        }
      }
    }
  }
}

// The scores of the warp's keys: q k^T, scaled, masked. `first_key` is the key of column 0,
// `scale_at` the index of its scale.
template <typename Kv, typename M, int kDim>
HEDDLE_DEVICE void Scores(const AttentionParams& p, const M& memory, int at, int scale_at,
                          const Running<kDim>& run, const int (&begin)[2], const int (&end)[2],
                          int first_key, float (&scores)[M::L::kKeyTiles][4]) {
  using L = typename M::L;
  HEDDLE_UNROLL
  for (int n = 0; n < L::kKeyTiles; ++n) {
    HEDDLE_UNROLL
    for (int e = 0; e < 4; ++e) scores[n][e] = 0;
  }
  Dots<Kv>(memory, at, run.q, scores);
  HEDDLE_UNROLL
  for (int n = 0; n < L::kKeyTiles; ++n) {
    HEDDLE_UNROLL
    for (int e = 0; e < 4; ++e) {
      const int column = 8 * n + 2 * (Lane() % 4) + e % 2;
      const int key = first_key + column;
      const bool seen = key >= begin[e / 2] && key < end[e / 2];
      if constexpr (IsInt8(Kv())) scores[n][e] *= memory.scales.Get(scale_at + column);
      scores[n][e] = seen ? ScaledScore(p.args, scores[n][e]) : -Infinity();
    }
  }
}

// Hides those of a tree's own keys that the rows' masks lack. `first_packed` is the warp's first
// row.
template <int kKeyTiles>
HEDDLE_DEVICE void HideByTree(const AttentionParams& p, const SequenceView& s, int first_packed,
                              int first_key, float (&scores)[kKeyTiles][4]) {
  HEDDLE_UNROLL
  for (int h = 0; h < 2; ++h) {
    const uint64_t mask = s.TreeMask(p.batch, first_packed + Lane() / 4 + 8 * h);
    HEDDLE_UNROLL
    for (int n = 0; n < kKeyTiles; ++n) {
      HEDDLE_UNROLL
      for (int e = 0; e < 2; ++e) {
        const int key = first_key + 8 * n + 2 * (Lane() % 4) + e;
        if (!TreeSees(mask, key - s.OwnKeys())) scores[n][2 * h + e] = -Infinity();
      }
    }
  }
}

// Turns scores into weights, and rescales sums against a smaller maximum.
template <int kKeyTiles, int kDim>
HEDDLE_DEVICE void UpdateSoftmax(float (&scores)[kKeyTiles][4], Running<kDim>& run) {
  HEDDLE_UNROLL
  for (int h = 0; h < 2; ++h) {
    float max = run.max[h];
    HEDDLE_UNROLL
    for (int n = 0; n < kKeyTiles; ++n) {
      max = Max(max, Max(scores[n][2 * h], scores[n][2 * h + 1]));
    }
    max = Max(max, ShuffleXor(max, 1));
    max = Max(max, ShuffleXor(max, 2));
    const float base = Softmax::Base(max);
    const float shrink = Exp2(run.max[h] - base);
    run.max[h] = max;
    float sum = 0;
    HEDDLE_UNROLL
    for (int n = 0; n < kKeyTiles; ++n) {
      scores[n][2 * h] = Exp2(scores[n][2 * h] - base);
      scores[n][2 * h + 1] = Exp2(scores[n][2 * h + 1] - base);
      sum += scores[n][2 * h] + scores[n][2 * h + 1];
    }
    run.sum[h] = run.sum[h] * shrink + sum;
    HEDDLE_UNROLL
    for (int d = 0; d < kDim / 8; ++d) {
      run.out[d][2 * h] *= shrink;
      run.out[d][2 * h + 1] *= shrink;
    }
  }
}

// The weights of keys n * 8 .. n * 8 + 15 as a left matrix, multiplied by the scales of their
// values.
template <typename Kv, typename M>
HEDDLE_DEVICE void WeightsOf(const M& memory, int scale_at,
                             const float (&weights)[M::L::kKeyTiles][4], int n, uint32_t (&a)[4]) {
  using Q = typename Computed<Kv>::Type;
  HEDDLE_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int tile = n + i / 2;
    float low = weights[tile][i % 2 * 2];
    float high = weights[tile][i % 2 * 2 + 1];
    if constexpr (IsInt8(Kv())) {
      const int at = M::L::kScales + scale_at + 8 * tile + 2 * (Lane() % 4);
      low *= memory.scales.Get(at);
      high *= memory.scales.Get(at + 1);
    }
    a[i] = Pack2(low, high, Q());
  }
}

// out += weights * v. The left matrix has the layout of the score fragments, so the weights never
// leave their lanes.
template <typename Kv, typename M, int kDim>
HEDDLE_DEVICE void AddValues(const M& memory, int at, int scale_at,
                             const float (&weights)[M::L::kKeyTiles][4], Running<kDim>& run) {
  using L = typename M::L;
  using Q = typename Computed<Kv>::Type;
  const int lane = Lane();
  const int row = at + lane % 16 * L::kStride + lane / 16 * L::kUnit;
  HEDDLE_UNROLL
  for (int n = 0; n < L::kKeyTiles; n += 2) {
    uint32_t a[4];
    WeightsOf<Kv>(memory, scale_at, weights, n, a);
    HEDDLE_UNROLL
    for (int d = 0; d < kDim / (2 * L::kUnit); ++d) {
      uint32_t v[4];
      LoadMatrix4Transposed(v, memory.v, row + n * 8 * L::kStride + d * 2 * L::kUnit);
      if constexpr (L::kIsWide) {
        Mma16816(run.out[2 * d], a, {v[0], v[1]}, Q());
        Mma16816(run.out[2 * d + 1], a, {v[2], v[3]}, Q());
      } else {
        HEDDLE_UNROLL
        for (int i = 0; i < 2; ++i) {  // 16 columns each
          uint32_t even[2], odd[2];
          EvenAndOdd(v[2 * i], even[0], odd[0], Kv());
          EvenAndOdd(v[2 * i + 1], even[1], odd[1], Kv());
          Mma16816(run.out[4 * d + 2 * i], a, even, Q());
          Mma16816(run.out[4 * d + 2 * i + 1], a, odd, Q());
        }
      }
    }
  }
}

// Brings neighbouring columns of the output together in a lane; OutputColumn tells which they are.
template <typename Kv, int kDim>
HEDDLE_DEVICE void SortColumns(Running<kDim>& run) {
  if constexpr (sizeof(Kv) == 1) {
    HEDDLE_UNROLL
    for (int d = 0; d < kDim / 8; d += 2) {
      HEDDLE_UNROLL
      for (int h = 0; h < 2; ++h) {
        const float even = run.out[d][2 * h + 1];
        run.out[d][2 * h + 1] = run.out[d + 1][2 * h];
        run.out[d + 1][2 * h] = even;
      }
    }
  }
}

// The first of the two columns in out[d][2h] and out[d][2h + 1].
template <typename Kv>
HEDDLE_DEVICE int OutputColumn(int d) {
  const int t = Lane() % 4;
  return sizeof(Kv) == 2 ? 8 * d + 2 * t : d / 2 * 16 + 4 * t + d % 2 * 2;
}

HEDDLE_DEVICE void StorePair(const AttentionParams& p, const SequenceView& s,
                             const AttentionTile& tile, int row, int c, float low, float high) {
  const int dim = p.args.cache.head_dim;
  const int packed = tile.first + row;
  if (tile.partial >= 0) {
    float* to = p.partial_out + PartialOf(p, tile.partial + row, s.kv_head) * dim + c;
    *reinterpret_cast<Vec8*>(to) = {{FloatToBits(low), FloatToBits(high)}};
    return;
  }
  BFloat16* out =
      p.args.out.row<BFloat16>(s.Row(packed)) + static_cast<int64_t>(s.Head(packed)) * dim + c;
  *reinterpret_cast<uint32_t*>(out) = Pack2(low, high, BFloat16());
}

// Prefill: each warp has its own rows.
template <typename Kv, int kDim>
HEDDLE_DEVICE void StoreRows(const AttentionParams& p, const SequenceView& s,
                             const AttentionTile& tile, const Running<kDim>& run) {
  const int lane = Lane();
  HEDDLE_UNROLL
  for (int h = 0; h < 2; ++h) {
    float sum = run.sum[h];
    sum += ShuffleXor(sum, 1);
    sum += ShuffleXor(sum, 2);
    const int row = WarpIndex() * 16 + lane / 4 + 8 * h;
    if (s.Has(tile.first + row)) {
      const RowEnd end = EndOf(p, tile, s.Head(tile.first + row), {run.max[h], sum});
      HEDDLE_UNROLL
      for (int d = 0; d < kDim / 8; ++d) {
        const int c = OutputColumn<Kv>(d);
        if (c < p.args.cache.head_dim) {
          StorePair(p, s, tile, row, c, run.out[d][2 * h] * end.inverse,
                    run.out[d][2 * h + 1] * end.inverse);
        }
      }
      if (lane % 4 == 0) StoreLse(p, s, tile, row, end.lse);
    }
  }
}

template <typename Kv, int kDim, bool kTrees>
HEDDLE_DEVICE void Attend(const AttentionParams& p, const AttentionTile& tile) {
  using M = Memory<Kv, kDim, /*kDecodes=*/false>;
  using L = typename M::L;
  const SequenceView s(p, tile, BlockY(), kTrees);
  const KeyRange keys(p.batch, s, tile, L::kRows);
  const M memory{SharedArena()};

  StagedKeys<Kv, M> staged(p, s, keys, memory);
  staged.FindFirst();
  WaitForPrevious();  // for queries, and the newest keys
  SyncThreads();
  staged.LoadFirst();
  LoadQueries<Kv>(p, s, tile, memory);
  SyncThreads();

  Running<kDim> run;
  int begin[2], end[2];
  HEDDLE_UNROLL
  for (int h = 0; h < 2; ++h) {
    const int packed = tile.first + WarpIndex() * 16 + Lane() / 4 + 8 * h;
    const int first = s.FirstKey(p.batch, packed);
    begin[h] = first > keys.begin ? first : keys.begin;
    end[h] = s.EndKey(packed) < keys.end ? s.EndKey(packed) : keys.end;
    run.max[h] = -Infinity();
    run.sum[h] = 0;
  }
  HEDDLE_UNROLL
  for (int d = 0; d < kDim / 8; ++d) {
    HEDDLE_UNROLL
    for (int e = 0; e < 4; ++e) run.out[d][e] = 0;
  }
  HEDDLE_UNROLL
  for (int d = 0; d < kDim / 16; ++d) {
    const int row = WarpIndex() * 16 + Lane() % 16;
    LoadMatrix4(run.q[d], memory.q, row * L::kQStride + d * 16 + Lane() / 16 * 8);
  }

  for (int first = keys.begin; first < keys.end; first += kKeys) {
    const int stage = staged.Next(first);
    const int at = stage * L::kStage;
    float scores[L::kKeyTiles][4];
    const int scale_at = stage * kKeys;
    Scores<Kv>(p, memory, at, scale_at, run, begin, end, first, scores);
    if (s.tree && first + kKeys > s.OwnKeys()) {
      HideByTree(p, s, tile.first + WarpIndex() * 16, first, scores);
    }
    UpdateSoftmax(scores, run);
    AddValues<Kv>(memory, at, scale_at, scores, run);
  }
  SortColumns<Kv>(run);
  StoreRows<Kv>(p, s, tile, run);
}

template <typename Kv, int kDim, bool kTrees>
HEDDLE_KERNEL HEDDLE_BOUNDS(kThreads, 1) AttentionFlashKernel(HEDDLE_PARAMS(AttentionParams, p)) {
  AllowNext();
  for (int i = BlockX(); i < p.n_tiles; i += GridX()) {
    if (i != BlockX()) SyncThreads();       // the last tile's memory is free now
    const AttentionTile tile = p.tiles[i];  // in registers: stores cannot make it be read again
    Attend<Kv, kDim, kTrees>(p, tile);
  }
}

// Calls fn with the kernel's head_dim.
template <typename Fn>
Error ForDim(int32_t head_dim, Fn fn) {
  if (head_dim <= 64) return fn.template operator()<64>();
  if (head_dim <= 128) return fn.template operator()<128>();
  return fn.template operator()<256>();
}

inline LaunchShape ShapeOf(const AttentionParams& params) {
  const int heads = params.args.cache.n_kv_heads;
  LaunchShape shape = {.grid_x = params.n_tiles, .grid_y = heads, .threads = kThreads};
  if (params.max_blocks > 0 && params.max_blocks < params.n_tiles * heads) {
    shape.grid_x = params.max_blocks > heads ? params.max_blocks / heads : 1;
  }
  return shape;
}

template <typename Kv>
Error LaunchPrefill(const AttentionParams& params, Stream stream) {
  return ForDim(params.args.cache.head_dim, [&]<int kDim>() {
    LaunchShape shape = ShapeOf(params);
    shape.shared_bytes = Layout<Kv, kDim, false>::SharedBytes();
    return params.batch.tree_mask != nullptr
               ? Launch(AttentionFlashKernel<Kv, kDim, true>, shape, stream, params)
               : Launch(AttentionFlashKernel<Kv, kDim, false>, shape, stream, params);
  });
}

}  // namespace flash

// The kernels are in two sources, so that they compile in parallel.
Error LaunchAttentionFlash16(const AttentionParams& params, Stream stream);  // kF16, kBF16
Error LaunchAttentionFlash8(const AttentionParams& params, Stream stream);   // kInt8, kF8E4M3

}  // namespace heddle::kernels::cuda
