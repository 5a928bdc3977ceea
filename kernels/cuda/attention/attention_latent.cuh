// Paged attention of wide heads on matrix instructions: of latent caches, one KV head whose values
// are its keys, of up to 576 columns, and as many packed rows for a token as the model has heads
// (DeepSeek-V2's absorbed form, decision 0013); and of heads of up to 512 columns with values of
// their own (Gemma 4's layers without windows). Numbers below are of the former.
//
// A block takes a tile of 16 packed rows (decoding) or 64 (prompts, and decoding with many heads)
// of one sequence and walks its keys, 64 or 32 at a time, with a running softmax. Rows of 576
// columns are too wide for a warp's registers, so that its 8 warps divide each stage twice:
//   scores   by rows and keys: 16 rows and 8 or 16 keys each, all columns. The weights go to shared
//            memory, and so do the largest scores of each row, which the warps with other keys
//            need.
//   values   by columns: 72 each, all rows and keys. A matrix load brings 8 columns of 32 keys.
// Keys are copied once, for both. Rows of shared memory are padded by 16 bytes as in
// attention_flash.cuh. Keys of 8 bits are copied as they are, a stage ahead, and become 16 bits in
// shared memory, once for both products. Scales of int8 multiply scores, and the weights of values.
//
// Values of their own have one stage where keys have two, since 227 KiB hold no more: a stage's
// values are on their way while its scores are computed, and the next one's keys while values are
// added. A row of 512 columns is then read twice as often from memory (131 KB for 64 keys), and as
// often from shared memory: decoding is bound by memory as before, prompts by shared memory.
//
// Limits of the kernel, in clocks of a multiprocessor at 1.7 GHz, for 64 keys and 16 | 64 rows:
//   memory           73.7 KB at 4.3 TB/s / 132: 3,880; tiles of the same keys share them in the L2
//   shared memory    311 KB (queries 147, keys for scores 74, values 74, weights 16) | 730 KB (295,
//                    295, 74, 66), at 128 bytes a clock: 2,430 | 5,700
//                    of 8 bits: 37 KB at 4.3 TB/s, 1,940; conversion is another 37 + 74 KB of
//                    shared memory for 64 keys: 3,300 | 6,600
//   tensor cores     1.2 | 4.7 million multiply-adds, some 1,100 a clock by mma.sync: 1,070 | 4,290
// So decoding is bound by memory, and prompts by shared memory: some 180 TFLOP/s of 370 that it
// would allow without barriers (three a stage) and exponentials. In flight: 74 | 37 KB, where
// latency asks for 23. Sources: Dao et al. 2022 (FlashAttention); DeepSeek-AI 2024 (DeepSeek-V2).
#pragma once

#include "kernels/cuda/attention/attention_latent_stages.cuh"

namespace heddle::kernels::cuda {
namespace latent {

// The rows and keys of which a warp makes the scores: rows `row` + g and + g + 8 of the tile, and
// keys from `key` of the stage on, which are those of warp `key_warp` of kKeyWarps.
template <typename S>
struct WarpPart {
  int row, key_warp, key;
  HEDDLE_DEVICE WarpPart()
      : row(WarpIndex() % S::kRowTiles * 16),
        key_warp(WarpIndex() / S::kRowTiles),
        key(key_warp * S::kWarpKeys) {}
  HEDDLE_DEVICE int Row(int h) const { return row + Lane() / 4 + 8 * h; }
};

// The softmax of a warp's two rows, and the keys that these may see.
struct Rows {
  int begin[2], end[2];
  float max[2];
  float sum[2];  // this lane's share
};

// q k^T of the warp's rows and keys. Two sums for each, so that products wait less for each other.
template <typename S, typename Kv>
HEDDLE_DEVICE void Dots(const Memory<S, Kv>& memory, const WarpPart<S>& part, int stage,
                        float (&scores)[S::kKeyTiles][4]) {
  using Q = typename Memory<S, Kv>::Q;
  float odd[S::kKeyTiles][4];
  HEDDLE_UNROLL
  for (int n = 0; n < S::kKeyTiles; ++n) {
    HEDDLE_UNROLL
    for (int e = 0; e < 4; ++e) scores[n][e] = odd[n][e] = 0;
  }
  const int q = (part.row + Lane() % 16) * S::kStride + Lane() / 16 * 8;
  const int k = stage * S::kStage + (part.key + Lane() % 8) * S::kStride + Lane() / 8 * 8;
  HEDDLE_UNROLL_BY(6)
  for (int d = 0; d < S::kDim; d += 32) {
    uint32_t a[2][4];
    LoadMatrix4(a[0], memory.q, q + d);
    LoadMatrix4(a[1], memory.q, q + d + 16);
    HEDDLE_UNROLL
    for (int n = 0; n < S::kKeyTiles; ++n) {
      uint32_t b[4];  // 8 keys, 32 columns
      LoadMatrix4(b, memory.keys, k + n * 8 * S::kStride + d);
      Mma16816(scores[n], a[0], {b[0], b[1]}, Q());
      Mma16816(odd[n], a[1], {b[2], b[3]}, Q());
    }
  }
  HEDDLE_UNROLL
  for (int n = 0; n < S::kKeyTiles; ++n) {
    HEDDLE_UNROLL
    for (int e = 0; e < 4; ++e) scores[n][e] += odd[n][e];
  }
}

// The scales of the keys of which a lane has scores; of kInt8.
template <int kKeyTiles>
struct KeyScales {
  float of[kKeyTiles][2];
};
template <typename S, typename Kv>
HEDDLE_DEVICE KeyScales<S::kKeyTiles> ScalesOf(const Shared<float>& from, int first) {
  KeyScales<S::kKeyTiles> scales = {};
  if constexpr (Memory<S, Kv>::kScales > 0) {
    HEDDLE_UNROLL
    for (int n = 0; n < S::kKeyTiles; ++n) {
      HEDDLE_UNROLL
      for (int e = 0; e < 2; ++e) {
        scales.of[n][e] = from.Get(first + 8 * n + 2 * (Lane() % 4) + e);
      }
    }
  }
  return scales;
}

template <int kKeyTiles>
HEDDLE_DEVICE void ScaleKeys(const KeyScales<kKeyTiles>& scales, float (&scores)[kKeyTiles][4]) {
  HEDDLE_UNROLL
  for (int n = 0; n < kKeyTiles; ++n) {
    HEDDLE_UNROLL
    for (int e = 0; e < 4; ++e) scores[n][e] *= scales.of[n][e % 2];
  }
}

// Scales and masks the scores of keys from `first_key` on.
template <int kKeyTiles>
HEDDLE_DEVICE void Mask(const AttentionParams& p, const Rows& rows, int first_key,
                        float (&scores)[kKeyTiles][4]) {
  HEDDLE_UNROLL
  for (int n = 0; n < kKeyTiles; ++n) {
    HEDDLE_UNROLL
    for (int e = 0; e < 4; ++e) {
      const int key = first_key + 8 * n + 2 * (Lane() % 4) + e % 2;
      const bool seen = key >= rows.begin[e / 2] && key < rows.end[e / 2];
      scores[n][e] = seen ? ScaledScore(p.args, scores[n][e]) : -Infinity();
    }
  }
}

// Leaves the largest of the warp's scores of each row to the others.
template <typename S, typename Kv>
HEDDLE_DEVICE void LeaveMaxima(const Memory<S, Kv>& memory, const WarpPart<S>& part,
                               const float (&scores)[S::kKeyTiles][4]) {
  HEDDLE_UNROLL
  for (int h = 0; h < 2; ++h) {
    float max = -Infinity();
    HEDDLE_UNROLL
    for (int n = 0; n < S::kKeyTiles; ++n) {
      max = Max(max, Max(scores[n][2 * h], scores[n][2 * h + 1]));
    }
    max = Max(max, ShuffleXor(max, 1));
    max = Max(max, ShuffleXor(max, 2));
    if (Lane() % 4 == 0) memory.of_warps.Set(part.key_warp * S::kRows + part.Row(h), max);
  }
}

// Turns the warp's scores into weights in shared memory, multiplied by the scales of their values
// if there are any, and says by how much older sums of the rows shrink.
template <typename S, typename Kv>
HEDDLE_DEVICE void LeaveWeights(const Memory<S, Kv>& memory, const WarpPart<S>& part,
                                const float (&scores)[S::kKeyTiles][4],
                                const KeyScales<S::kKeyTiles>& scales, Rows& rows) {
  using Q = typename Memory<S, Kv>::Q;
  HEDDLE_UNROLL
  for (int h = 0; h < 2; ++h) {
    const int row = part.Row(h);
    float max = rows.max[h];
    HEDDLE_UNROLL
    for (int w = 0; w < S::kKeyWarps; ++w) max = Max(max, memory.of_warps.Get(w * S::kRows + row));
    const float base = Softmax::Base(max);
    const float shrink = Exp2(rows.max[h] - base);
    rows.max[h] = max;
    float sum = 0;
    HEDDLE_UNROLL
    for (int n = 0; n < S::kKeyTiles; ++n) {
      float low = Exp2(scores[n][2 * h] - base), high = Exp2(scores[n][2 * h + 1] - base);
      sum += low + high;
      if constexpr (Memory<S, Kv>::kScales > 0) {
        low *= scales.of[n][0];
        high *= scales.of[n][1];
      }
      memory.weights.SetAs(row * S::kWeightStride + part.key + 8 * n + 2 * (Lane() % 4),
                           Words<1>{{Pack2(low, high, Q())}});
    }
    rows.sum[h] = rows.sum[h] * shrink + sum;
    if (part.key_warp == 0 && Lane() % 4 == 0) memory.shrink.Set(row, shrink);
  }
}

// A warp's columns of all rows.
template <typename S>
using Sums = float[S::kRowTiles][S::kColumnTiles][4];

template <typename S, typename Kv>
HEDDLE_DEVICE void Shrink(const Memory<S, Kv>& memory, Sums<S>& out) {
  HEDDLE_UNROLL
  for (int m = 0; m < S::kRowTiles; ++m) {
    float factor[2];
    HEDDLE_UNROLL
    for (int h = 0; h < 2; ++h) factor[h] = memory.shrink.Get(16 * m + Lane() / 4 + 8 * h);
    if (Ballot(factor[0] != 1.0f || factor[1] != 1.0f) == 0) continue;
    HEDDLE_UNROLL
    for (int n = 0; n < S::kColumnTiles; ++n) {
      HEDDLE_UNROLL
      for (int e = 0; e < 4; ++e) out[m][n][e] *= factor[e / 2];
    }
  }
}

// out += weights * values, of which row 0 is at `at` of `values`.
template <typename S, typename Kv>
HEDDLE_DEVICE void AddValues(const Memory<S, Kv>& memory,
                             const Shared<typename Memory<S, Kv>::Q>& values, int at,
                             Sums<S>& out) {
  using Q = typename Memory<S, Kv>::Q;
  HEDDLE_UNROLL
  for (int first = 0; first < S::kKeys; first += kValueKeys) {
    uint32_t a[S::kRowTiles][2][4];
    HEDDLE_UNROLL
    for (int m = 0; m < S::kRowTiles; ++m) {
      HEDDLE_UNROLL
      for (int j = 0; j < 2; ++j) {
        LoadMatrix4(a[m][j], memory.weights,
                    (16 * m + Lane() % 16) * S::kWeightStride + first + 16 * j + Lane() / 16 * 8);
      }
    }
    const int v_at = at + (first + Lane()) * S::kStride + WarpIndex() * S::kWarpColumns;
    HEDDLE_UNROLL
    for (int n = 0; n < S::kColumnTiles; ++n) {
      uint32_t v[4];  // 32 keys, 8 columns
      LoadMatrix4Transposed(v, values, v_at + 8 * n);
      HEDDLE_UNROLL
      for (int m = 0; m < S::kRowTiles; ++m) {
        Mma16816(out[m][n], a[m][0], {v[0], v[1]}, Q());
        Mma16816(out[m][n], a[m][1], {v[2], v[3]}, Q());
      }
    }
  }
}

// Adds up the softmax of the warps that share rows, and stores all rows.
template <typename S, typename Kv>
HEDDLE_DEVICE void StoreRows(const AttentionParams& p, const SequenceView& s,
                             const AttentionTile& tile, const Memory<S, Kv>& memory,
                             const WarpPart<S>& part, const Rows& rows, const Sums<S>& out) {
  HEDDLE_UNROLL
  for (int h = 0; h < 2; ++h) {
    float sum = rows.sum[h];
    sum += ShuffleXor(sum, 1);
    sum += ShuffleXor(sum, 2);
    if (Lane() % 4 != 0) continue;
    memory.of_warps.Set(part.key_warp * S::kRows + part.Row(h), sum);
    if (part.key_warp == 0) memory.max.Set(part.Row(h), rows.max[h]);
  }
  SyncThreads();
  HEDDLE_UNROLL
  for (int m = 0; m < S::kRowTiles; ++m) {
    HEDDLE_UNROLL
    for (int h = 0; h < 2; ++h) {
      const int row = 16 * m + Lane() / 4 + 8 * h;
      if (!s.Has(tile.first + row)) continue;
      Softmax all = {memory.max.Get(row), 0.0f};
      for (int w = 0; w < S::kKeyWarps; ++w) all.sum += memory.of_warps.Get(w * S::kRows + row);
      const RowEnd end = EndOf(p, tile, s.Head(tile.first + row), all);
      HEDDLE_UNROLL
      for (int n = 0; n < S::kColumnTiles; ++n) {
        const int c = WarpIndex() * S::kWarpColumns + 8 * n + 2 * (Lane() % 4);
        if (c >= p.args.cache.head_dim) continue;
        flash::StorePair(p, s, tile, row, c, out[m][n][2 * h] * end.inverse,
                         out[m][n][2 * h + 1] * end.inverse);
      }
      if (WarpIndex() == 0 && Lane() % 4 == 0) StoreLse(p, s, tile, row, end.lse);
    }
  }
}

template <typename S, typename Kv, bool kTrees>
HEDDLE_DEVICE void Attend(const AttentionParams& p, const AttentionTile& tile) {
  using Q = typename Memory<S, Kv>::Q;
  const SequenceView s = ViewOfTile(p, tile, BlockY(), kTrees);
  const KeyRange keys(p.batch, s, tile, S::kRows);
  const Memory<S, Kv> memory{SharedArena()};

  if (tile.is_listed) WaitForPrevious();  // for the list
  StagedKeys<S, Kv> staged(p, s, tile, keys, memory);
  staged.FindFirst();
  WaitForPrevious();  // for queries, and the newest keys
  SyncThreads();
  staged.LoadFirst();
  flash::LoadQueryRows<Q, S::kRows, S::kStride, kThreads>(p, s, tile, memory.q);

  const WarpPart<S> part;
  Rows rows;
  HEDDLE_UNROLL
  for (int h = 0; h < 2; ++h) {
    const int packed = tile.first + part.Row(h);
    const int first = s.FirstKey(p.batch, packed);
    rows.begin[h] = first > keys.begin ? first : keys.begin;
    rows.end[h] = s.EndKey(packed) < keys.end ? s.EndKey(packed) : keys.end;
    rows.max[h] = -Infinity();
    rows.sum[h] = 0;
  }
  Sums<S> out = {};
  for (int first = keys.begin; first < keys.end; first += S::kKeys) {
    const int stage = staged.Next(first);
    float scores[S::kKeyTiles][4];
    Dots(memory, part, stage, scores);
    auto scales = ScalesOf<S, Kv>(memory.scales, staged.scales() + part.key);
    if constexpr (Memory<S, Kv>::kScales > 0) ScaleKeys(scales, scores);
    Mask(p, rows, first + part.key, scores);
    if (s.tree && first + S::kKeys > s.OwnKeys()) {
      flash::HideByTree(p, s, tile.first + part.row, first + part.key, scores);
    }
    LeaveMaxima(memory, part, scores);
    if constexpr (S::kOwnValues) staged.WaitForValues();
    SyncThreads();
    if constexpr (S::kOwnValues) {
      if constexpr (Memory<S, Kv>::kIsRaw) staged.ConvertValues();
      scales = ScalesOf<S, Kv>(memory.value_scales, part.key);
    }
    LeaveWeights(memory, part, scores, scales, rows);
    SyncThreads();
    Shrink(memory, out);
    if constexpr (S::kOwnValues) {
      constexpr bool kIsRaw = Memory<S, Kv>::kIsRaw;
      AddValues(memory, kIsRaw ? memory.keys : memory.values, 0, out);
      SyncThreads();  // their memory is free
      staged.NextValues(first);
    } else {
      AddValues(memory, memory.keys, stage * S::kStage, out);
    }
  }
  CopyAsyncWait<0>();  // for the case of an empty range
  StoreRows(p, s, tile, memory, part, rows, out);
}

template <typename S, typename Kv, bool kTrees>
HEDDLE_KERNEL HEDDLE_BOUNDS(kThreads, 1) AttentionLatentKernel(HEDDLE_PARAMS(AttentionParams, p)) {
  AllowNext();
  for (int i = BlockX(); i < p.n_tiles; i += GridX()) {
    if (i != BlockX()) SyncThreads();       // the last tile's memory is free now
    const AttentionTile tile = p.tiles[i];  // in registers: stores cannot make it be read again
    Attend<S, Kv, kTrees>(p, tile);
  }
}

template <typename S, typename Kv>
Error LaunchRows(const AttentionParams& params, Stream stream) {
  LaunchShape shape = flash::ShapeOf(params);
  shape.threads = kThreads;
  shape.shared_bytes = Memory<S, Kv>::kSharedBytes;
  return params.batch.tree_mask != nullptr
             ? Launch(AttentionLatentKernel<S, Kv, true>, shape, stream, params)
             : Launch(AttentionLatentKernel<S, Kv, false>, shape, stream, params);
}

template <typename Kv, int kDim, bool kOwn>
Error LaunchType(const AttentionParams& params, Stream stream) {
  return params.tile_rows == kPrefillTileRows
             ? LaunchRows<Shape<kPrefillTileRows, kDim, kOwn>, Kv>(params, stream)
             : LaunchRows<Shape<kDecodeTileRows, kDim, kOwn>, Kv>(params, stream);
}

// By the cache's type. REQUIRES: it is not F32, and heads have up to kDim columns.
template <int kDim, bool kOwn>
Error LaunchDim(const AttentionParams& params, Stream stream) {
  if (params.n_tiles == 0) return kSuccess;
  return ForNarrowKvType(params.args.cache.dtype, [&]<typename Kv>(Kv) {
    return LaunchType<Kv, kDim, kOwn>(params, stream);
  });
}

}  // namespace latent
}  // namespace heddle::kernels::cuda
