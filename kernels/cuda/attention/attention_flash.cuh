// Paged attention on matrix instructions, for prompt chunks and for decoding.
//
// A block takes a tile of packed rows (query rows x the query heads of one KV head) of one sequence
// and walks its keys 64 at a time, with the softmax kept running (Dao et al. 2022). Keys and values
// come page by page through cp.async into two stages of shared memory, so that the next keys travel
// while these are computed on. The tile's 4 warps share the work in one of two ways:
//   prefill  64 packed rows, 16 per warp; each warp meets all keys. Also trees of drafts, and the
//            rows of several sequences over a prefix that they share.
//   decode   16 packed rows; each warp meets 16 of every 64 keys, and the warps merge at the end.
//            Padding the group's heads to 16 rows costs tensor-core time that decoding has left
//            over: it waits for memory.
// Rows of shared memory are padded by 16 bytes: an odd number of 16-byte units, so that the eight
// rows of a matrix load lie in different banks.
//
// Caches of 8 bits stay so in shared memory and become F16 (E4M3) or BF16 (int8, exact) in
// registers. A matrix load of 16-bit units then brings each lane twice as many columns as the
// instruction wants of it; since sums over columns may go in any order, and columns of the output
// may stand anywhere until they are stored, the even bytes feed one instruction and the odd bytes
// the next. Scales of int8 keys multiply scores, those of values multiply the softmax's weights.
#pragma once

#include "kernels/cuda/attention/attention_flash_stages.cuh"

namespace heddle::kernels::cuda {
namespace flash {

// What one warp carries along the keys: fragments of its 16 rows.
template <int kDim>
struct Running {
  uint32_t q[kDim / 16][4];
  float out[kDim / 8][4];
  float max[2];  // rows g and g + 8
  float sum[2];  // this lane's share
};

// q k^T of the warp's keys.
template <typename Kv, typename M, int kDim>
HEDDLE_DEVICE void Dots(const M& memory, int at, const Running<kDim>& run,
                        float (&scores)[M::L::kKeyTiles][4]) {
  using L = typename M::L;
  using Q = typename Computed<Kv>::Type;
  const int lane = Lane();
  const int row = at + (lane / 16 * 8 + lane % 8) * L::kStride + lane / 8 % 2 * L::kUnit;
  HEDDLE_UNROLL
  for (int d = 0; d < kDim / (2 * L::kUnit); ++d) {
    HEDDLE_UNROLL
    for (int n = 0; n < L::kKeyTiles; n += 2) {
      uint32_t k[4];
      LoadMatrix4(k, memory.k, row + n * 8 * L::kStride + d * 2 * L::kUnit);
      if constexpr (L::kIsWide) {
        Mma16816(scores[n], run.q[d], {k[0], k[1]}, Q());
        Mma16816(scores[n + 1], run.q[d], {k[2], k[3]}, Q());
      } else {
        HEDDLE_UNROLL
        for (int i = 0; i < 4; ++i) {
          uint32_t b[2];
          EvenAndOdd(k[i], b[0], b[1], Kv());
          Mma16816(scores[n + i / 2], run.q[2 * d + i % 2], b, Q());
        }
      }
    }
  }
}

// Scores of the warp's keys: q k^T, scaled, masked. `first_key` is the key of column 0, `scale_at`
// the place of its scale.
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
  Dots<Kv>(memory, at, run, scores);
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

// Of a tree's own keys, those that the rows' masks lack. `first_packed` is the warp's first row.
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

// Turns scores into weights and shrinks what was summed against a smaller maximum.
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

// Weights of keys n * 8 .. n * 8 + 15 as a left matrix, with the scales of their values.
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

// out += weights * v. Where the score fragments put their columns is where the left matrix wants
// them, so the weights never leave their lanes.
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

// Brings neighbouring columns of the output together in a lane; OutputColumn says which they are.
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

// The first of the two columns in out[d][2h], out[d][2h + 1].
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

// Prefill: each warp owns its rows.
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

// Decode: the warps saw different keys of the same 16 rows; they meet in shared memory.
template <typename Kv, typename M, int kDim>
HEDDLE_DEVICE void MergeAndStoreRows(const AttentionParams& p, const SequenceView& s,
                                     const AttentionTile& tile, const M& memory,
                                     const Running<kDim>& run) {
  const int lane = Lane();
  const Shared<float> parts = M::Merge();
  HEDDLE_UNROLL
  for (int h = 0; h < 2; ++h) {
    float sum = run.sum[h];
    sum += ShuffleXor(sum, 1);
    sum += ShuffleXor(sum, 2);
    const int row = WarpIndex() * 16 + lane / 4 + 8 * h;
    if (lane % 4 == 0) {
      memory.states.Set(2 * row, run.max[h]);
      memory.states.Set(2 * row + 1, sum);
    }
    if (s.Has(tile.first + lane / 4 + 8 * h)) {  // four heads of a group fill 4 rows of 16
      HEDDLE_UNROLL
      for (int d = 0; d < kDim / 8; ++d) {
        const Vec8 pair = {{FloatToBits(run.out[d][2 * h]), FloatToBits(run.out[d][2 * h + 1])}};
        parts.SetAs(row * M::L::kMergeStride + OutputColumn<Kv>(d), pair);
      }
    }
  }
  SyncThreads();
  const int pairs = p.args.cache.head_dim / 2;
  for (int row = WarpIndex(); row < 16 && s.Has(tile.first + row); row += kWarps) {
    Softmax all = Softmax::Empty();
    for (int w = 0; w < kWarps; ++w) all.max = Max(all.max, memory.states.Get(2 * (w * 16 + row)));
    const float base = Softmax::Base(all.max);
    float factor[kWarps];
    HEDDLE_UNROLL
    for (int w = 0; w < kWarps; ++w) {
      factor[w] = Exp2(memory.states.Get(2 * (w * 16 + row)) - base);
      all.sum += factor[w] * memory.states.Get(2 * (w * 16 + row) + 1);
    }
    const RowEnd end = EndOf(p, tile, s.Head(tile.first + row), all);
    for (int i = lane; i < pairs; i += 32) {
      float low = 0, high = 0;
      HEDDLE_UNROLL
      for (int w = 0; w < kWarps; ++w) {
        const auto pair = parts.template GetAs<Vec8>((w * 16 + row) * M::L::kMergeStride + 2 * i);
        low += factor[w] * BitsToFloat(pair.word[0]);
        high += factor[w] * BitsToFloat(pair.word[1]);
      }
      StorePair(p, s, tile, row, 2 * i, low * end.inverse, high * end.inverse);
    }
    if (lane == 0) StoreLse(p, s, tile, row, end.lse);
  }
}

template <typename Kv, int kDim, int kRowWarps, bool kTrees>
HEDDLE_DEVICE void Attend(const AttentionParams& p, const AttentionTile& tile) {
  using M = Memory<Kv, kDim, kRowWarps>;
  using L = typename M::L;
  const SequenceView s(p, tile, BlockY(), kTrees);
  const KeyRange keys(p.batch, s, tile, L::kRows);
  const M memory{SharedArena()};
  const int row_warp = WarpIndex() % kRowWarps;
  const int key_warp = WarpIndex() / kRowWarps;

  // Each of the first kKeys threads looks up one key of every stage.
  KeyCursor cursor(p.batch, tile.seq,
                   keys.begin + ThreadX() < keys.end ? keys.begin + ThreadX() : keys.begin);
  auto find_keys = [&](int first_key, int stage) {
    if (ThreadX() >= kKeys) return;
    const int key = first_key + ThreadX();
    KeyPlace place = {-1, -1};
    if (key < keys.end) place = cursor.Find(p.batch, p.args.cache, key, s.kv_head);
    memory.offsets.Set(stage * kKeys + ThreadX(), place.row);
    if constexpr (IsInt8(Kv())) memory.scale_places.Set(stage * kKeys + ThreadX(), place.scale);
  };

  find_keys(keys.begin, 0);
  WaitForPrevious();  // queries, and the newest keys
  SyncThreads();
  LoadStage<Kv>(p, 0, memory);
  LoadQueries<Kv>(p, s, tile, memory);
  SyncThreads();

  Running<kDim> run;
  int begin[2], end[2];
  HEDDLE_UNROLL
  for (int h = 0; h < 2; ++h) {
    const int packed = tile.first + row_warp * 16 + Lane() / 4 + 8 * h;
    const int first = s.FirstKey(p.batch, packed);
    begin[h] = first > keys.begin ? first : keys.begin;
    end[h] = s.EndKey(packed) < keys.end ? s.EndKey(packed) : keys.end;
    run.max[h] = -Infinity();
    run.sum[h] = 0;
  }
  HEDDLE_UNROLL
  for (int d = 0; d < L::kDimTiles; ++d) {
    HEDDLE_UNROLL
    for (int e = 0; e < 4; ++e) run.out[d][e] = 0;
  }
  HEDDLE_UNROLL
  for (int d = 0; d < kDim / 16; ++d) {
    const int row = row_warp * 16 + Lane() % 16;
    LoadMatrix4(run.q[d], memory.q, row * L::kQStride + d * 16 + Lane() / 16 * 8);
  }

  int stage = 0;
  for (int first = keys.begin; first < keys.end; first += kKeys, stage ^= 1) {
    const bool more = first + kKeys < keys.end;
    if (more) find_keys(first + kKeys, stage ^ 1);
    CopyAsyncWait<0>();
    SyncThreads();  // this stage is there, and nobody reads the other one any more
    if (more) LoadStage<Kv>(p, stage ^ 1, memory);
    const int at = stage * L::kStage + key_warp * L::kWarpKeys * L::kStride;
    float scores[L::kKeyTiles][4];
    const int scale_at = stage * kKeys + key_warp * L::kWarpKeys;
    const int first_key = first + key_warp * L::kWarpKeys;
    Scores<Kv>(p, memory, at, scale_at, run, begin, end, first_key, scores);
    if (s.tree && first + kKeys > s.OwnKeys()) {
      HideByTree(p, s, tile.first + row_warp * 16, first_key, scores);
    }
    UpdateSoftmax(scores, run);
    AddValues<Kv>(memory, at, scale_at, scores, run);
  }
  SortColumns<Kv>(run);
  if constexpr (L::kKeyWarps == 1) {
    StoreRows<Kv>(p, s, tile, run);
  } else {
    CopyAsyncWait<0>();  // of an empty range
    SyncThreads();
    MergeAndStoreRows<Kv>(p, s, tile, memory, run);
  }
}

template <typename Kv, int kDim, int kRowWarps, bool kTrees>
HEDDLE_KERNEL HEDDLE_BOUNDS(kThreads, 1) AttentionFlashKernel(HEDDLE_PARAMS(AttentionParams, p)) {
  AllowNext();
  for (int i = BlockX(); i < p.n_tiles; i += GridX()) {
    if (i != BlockX()) SyncThreads();       // nobody reads the last tile's memory any more
    const AttentionTile tile = p.tiles[i];  // in registers: stores do not make it be read again
    Attend<Kv, kDim, kRowWarps, kTrees>(p, tile);
  }
}

template <typename Kv, int kDim, int kRowWarps>
Error LaunchTile(const AttentionParams& params, LaunchShape shape, Stream stream) {
  shape.shared_bytes = Layout<Kv, kDim, kRowWarps>::SharedBytes();
  return params.batch.tree_mask != nullptr
             ? Launch(AttentionFlashKernel<Kv, kDim, kRowWarps, true>, shape, stream, params)
             : Launch(AttentionFlashKernel<Kv, kDim, kRowWarps, false>, shape, stream, params);
}

template <typename Kv, int kDim>
Error LaunchDim(const AttentionParams& params, Stream stream) {
  const int heads = params.args.cache.n_kv_heads;
  LaunchShape shape = {.grid_x = params.n_tiles, .grid_y = heads, .threads = kThreads};
  if (params.max_blocks > 0 && params.max_blocks < params.n_tiles * heads) {
    shape.grid_x = params.max_blocks > heads ? params.max_blocks / heads : 1;
  }
  return params.tile_rows == kPrefillTileRows ? LaunchTile<Kv, kDim, 4>(params, shape, stream)
                                              : LaunchTile<Kv, kDim, 1>(params, shape, stream);
}

template <typename Kv>
Error LaunchType(const AttentionParams& params, Stream stream) {
  const int dim = params.args.cache.head_dim;
  if (dim <= 64) return LaunchDim<Kv, 64>(params, stream);
  if (dim <= 128) return LaunchDim<Kv, 128>(params, stream);
  return LaunchDim<Kv, 256>(params, stream);
}

}  // namespace flash

// The kernels are spread over two sources, so that they compile side by side.
Error LaunchAttentionFlash16(const AttentionParams& params, Stream stream);  // kF16, kBF16
Error LaunchAttentionFlash8(const AttentionParams& params, Stream stream);   // kInt8, kF8E4M3

}  // namespace heddle::kernels::cuda
