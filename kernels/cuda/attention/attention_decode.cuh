// Paged attention for decoding, on matrix instructions.
//
// A block takes a tile of up to 16 packed rows (query rows x the query heads of one KV head) of one
// sequence and walks its keys 64 at a time, 16 for each of its 4 warps; the warps' results are
// merged at the end; parts of a long context by the last of their blocks. Stages, padding and
// caches of 8 bits are as in attention_flash.cuh. Decoding is bound by memory if the work on each
// key takes less time than its transfer, so two things are different here:
//   scores    are rows times keys. An instruction has 16 rows, used or not; only the scores of the
//             first kHalves x 8 rows are looked at. Llama's groups of 4 heads are one half, which
//             saves exponentials and masks of 8 rows.
//   values    are transposed: values^T times weights^T, columns of the head x rows. The weights
//             have the layout of the scores, and an instruction makes 16 columns of 8 rows instead
//             of 8 columns of 16, which for one half is half of the products, sums and rescaling.
// Stages that all rows see need no masks, and sums are rescaled only when a maximum has changed.
#pragma once

#include "kernels/cuda/attention/attention_flash.cuh"
#include "kernels/cuda/attention/attention_merge.cuh"

namespace heddle::kernels::cuda {
namespace decode {

using flash::kKeys;
using flash::kThreads;
using flash::kWarps;

// The state of one warp along its keys. With g = lane / 4, t = lane % 4: row 8h + g for `max` and
// `sum`, rows 8h + 2t and the next for `out`.
template <int kDim, int kHalves>
struct Running {
  uint32_t q[kDim / 16][4];
  float out[kDim / 16][kHalves][4];  // columns: ColumnOf(d) of rows 2t, 2t + 1; then its neighbour
  float max[kHalves];
  float sum[kHalves];  // this lane's share
};

// The keys that rows 8h + g may see, and those that all rows of the tile may see.
template <int kHalves>
struct Visible {
  int begin[kHalves], end[kHalves];
  int all_begin, all_end;

  HEDDLE_DEVICE Visible(const AttentionParams& p, const SequenceView& s, const AttentionTile& tile,
                        const KeyRange& keys)
      : all_begin(keys.begin), all_end(keys.end) {
    HEDDLE_UNROLL
    for (int h = 0; h < kHalves; ++h) {
      const int packed = tile.first + 8 * h + Lane() / 4;
      const int first = s.FirstKey(p.batch, packed);
      begin[h] = first > keys.begin ? first : keys.begin;
      end[h] = s.EndKey(packed) < keys.end ? s.EndKey(packed) : keys.end;
      if (!s.Has(packed)) continue;
      all_begin = begin[h] > all_begin ? begin[h] : all_begin;
      all_end = end[h] < all_end ? end[h] : all_end;
    }
    if (s.tree && s.OwnKeys() < all_end) all_end = s.OwnKeys();
    HEDDLE_UNROLL
    for (int mask = 4; mask < 32; mask *= 2) {
      const int other_begin = ShuffleXor(all_begin, mask), other_end = ShuffleXor(all_end, mask);
      all_begin = other_begin > all_begin ? other_begin : all_begin;
      all_end = other_end < all_end ? other_end : all_end;
    }
  }
  HEDDLE_DEVICE bool IsAll(int first, int count) const {
    return first >= all_begin && first + count <= all_end;
  }
};

// The place of a warp's keys in a stage.
struct KeysAt {
  int first_key;
  int at;        // element index in the stages
  int scale_at;  // index in the scales
};

// Computes the scores of the warp's keys, scaled and masked; rows beyond kHalves are not used.
template <typename Kv, int kHalves, typename M, int kDim>
HEDDLE_DEVICE void Scores(const AttentionParams& p, const SequenceView& s,
                          const AttentionTile& tile, const M& memory, const KeysAt& keys,
                          const Visible<kHalves>& visible, const Running<kDim, kHalves>& run,
                          float (&scores)[M::L::kKeyTiles][4]) {
  using L = typename M::L;
  HEDDLE_UNROLL
  for (int n = 0; n < L::kKeyTiles; ++n) {
    HEDDLE_UNROLL
    for (int e = 0; e < 4; ++e) scores[n][e] = 0;
  }
  flash::Dots<Kv>(memory, keys.at, run.q, scores);
  if constexpr (flash::IsInt8(Kv())) {
    HEDDLE_UNROLL
    for (int n = 0; n < L::kKeyTiles; ++n) {
      const auto pair =
          memory.scales.template GetAs<Vec8>(keys.scale_at + 8 * n + 2 * (Lane() % 4));
      HEDDLE_UNROLL
      for (int e = 0; e < 2 * kHalves; ++e) scores[n][e] *= BitsToFloat(pair.word[e % 2]);
    }
  }
  if (visible.IsAll(keys.first_key, L::kWarpKeys) && p.args.softcap <= 0) {
    const float scale = p.args.scale * kLog2E;
    HEDDLE_UNROLL
    for (int n = 0; n < L::kKeyTiles; ++n) {
      HEDDLE_UNROLL
      for (int e = 0; e < 2 * kHalves; ++e) scores[n][e] *= scale;
    }
    return;
  }
  HEDDLE_UNROLL
  for (int n = 0; n < L::kKeyTiles; ++n) {
    HEDDLE_UNROLL
    for (int e = 0; e < 2 * kHalves; ++e) {
      const int key = keys.first_key + 8 * n + 2 * (Lane() % 4) + e % 2;
      const bool seen = key >= visible.begin[e / 2] && key < visible.end[e / 2];
      scores[n][e] = seen ? ScaledScore(p.args, scores[n][e]) : -Infinity();
    }
  }
  if (s.tree && keys.first_key + L::kWarpKeys > s.OwnKeys()) {
    flash::HideByTree(p, s, tile.first, keys.first_key, scores);
  }
}

// Turns scores into weights, and rescales the sums if a maximum has grown.
template <int kKeyTiles, int kDim, int kHalves>
HEDDLE_DEVICE void UpdateSoftmax(float (&scores)[kKeyTiles][4], Running<kDim, kHalves>& run) {
  HEDDLE_UNROLL
  for (int h = 0; h < kHalves; ++h) {
    float max = run.max[h];
    HEDDLE_UNROLL
    for (int n = 0; n < kKeyTiles; ++n) {
      max = Max(max, Max(scores[n][2 * h], scores[n][2 * h + 1]));
    }
    max = Max(max, ShuffleXor(max, 1));
    max = Max(max, ShuffleXor(max, 2));
    const float base = Softmax::Base(max);
    const bool grew = max > run.max[h];
    const float shrink = grew ? Exp2(run.max[h] - base) : 1.0f;
    run.max[h] = max;
    float sum = 0;
    HEDDLE_UNROLL
    for (int n = 0; n < kKeyTiles; ++n) {
      scores[n][2 * h] = Exp2(scores[n][2 * h] - base);
      scores[n][2 * h + 1] = Exp2(scores[n][2 * h + 1] - base);
      sum += scores[n][2 * h] + scores[n][2 * h + 1];
    }
    run.sum[h] = run.sum[h] * shrink + sum;
    if (Ballot(grew) == 0) continue;
    const float low = Shuffle(shrink, Lane() % 4 * 8), high = Shuffle(shrink, Lane() % 4 * 8 + 4);
    HEDDLE_UNROLL
    for (int d = 0; d < kDim / 16; ++d) {
      run.out[d][h][0] *= low;
      run.out[d][h][1] *= high;
      run.out[d][h][2] *= low;
      run.out[d][h][3] *= high;
    }
  }
}

// The weights of 16 keys as right matrices, multiplied by the scales of their values.
template <typename Kv, typename M, int kHalves>
HEDDLE_DEVICE void WeightsOf(const M& memory, int scale_at,
                             const float (&weights)[M::L::kKeyTiles][4],
                             uint32_t (&b)[kHalves][2]) {
  static_assert(M::L::kKeyTiles == 2);
  HEDDLE_UNROLL
  for (int n = 0; n < 2; ++n) {
    [[maybe_unused]] Vec8 scales;
    if constexpr (flash::IsInt8(Kv())) {
      scales =
          memory.scales.template GetAs<Vec8>(M::L::kScales + scale_at + 8 * n + 2 * (Lane() % 4));
    }
    HEDDLE_UNROLL
    for (int h = 0; h < kHalves; ++h) {
      float low = weights[n][2 * h], high = weights[n][2 * h + 1];
      if constexpr (flash::IsInt8(Kv())) {
        low *= BitsToFloat(scales.word[0]);
        high *= BitsToFloat(scales.word[1]);
      }
      b[h][n] = Pack2(low, high, typename M::Q());
    }
  }
}

// out += values^T weights^T of the warp's 16 keys.
template <typename Kv, typename M, int kDim, int kHalves>
HEDDLE_DEVICE void AddValues(const M& memory, const KeysAt& keys,
                             const float (&weights)[M::L::kKeyTiles][4],
                             Running<kDim, kHalves>& run) {
  using L = typename M::L;
  using Q = typename M::Q;
  uint32_t b[kHalves][2];
  WeightsOf<Kv>(memory, keys.scale_at, weights, b);
  // The matrices are keys 0..7 and 8..15 of a unit of columns, then of the next unit.
  const int row = keys.at + Lane() % 16 * L::kStride + Lane() / 16 * L::kUnit;
  HEDDLE_UNROLL
  for (int d = 0; d < kDim / (2 * L::kUnit); ++d) {
    uint32_t v[4];
    LoadMatrix4Transposed(v, memory.v, row + d * 2 * L::kUnit);
    if constexpr (L::kIsWide) {
      const uint32_t a[4] = {v[0], v[2], v[1], v[3]};
      HEDDLE_UNROLL
      for (int h = 0; h < kHalves; ++h) Mma16816(run.out[d][h], a, b[h], Q());
    } else {
      HEDDLE_UNROLL
      for (int i = 0; i < 2; ++i) {  // 16 columns each: even ones, then odd ones
        uint32_t a[4];
        flash::EvenAndOdd(v[2 * i], a[0], a[1], Kv());
        flash::EvenAndOdd(v[2 * i + 1], a[2], a[3], Kv());
        HEDDLE_UNROLL
        for (int h = 0; h < kHalves; ++h) Mma16816(run.out[2 * d + i][h], a, b[h], Q());
      }
    }
  }
}

// The columns of out[d][h][0] and [1]; those of [2] and [3] are kApart further.
template <typename Kv>
HEDDLE_DEVICE int ColumnOf(int d) {
  return 16 * d + (sizeof(Kv) == 2 ? Lane() / 4 : Lane() / 4 * 2);
}
template <typename Kv>
constexpr int kApart = sizeof(Kv) == 2 ? 8 : 1;

// Stores a warp's results as rows in the memory of the keys.
template <typename Kv, typename M, int kDim, int kHalves>
HEDDLE_DEVICE void LeaveResults(const SequenceView& s, const AttentionTile& tile, const M& memory,
                                const Running<kDim, kHalves>& run) {
  const Shared<float> parts = M::Merge();
  HEDDLE_UNROLL
  for (int h = 0; h < kHalves; ++h) {
    float sum = run.sum[h];
    sum += ShuffleXor(sum, 1);
    sum += ShuffleXor(sum, 2);
    const int row = WarpIndex() * M::L::kRows + 8 * h;
    if (Lane() % 4 == 0) {
      memory.states.Set(2 * (row + Lane() / 4), run.max[h]);
      memory.states.Set(2 * (row + Lane() / 4) + 1, sum);
    }
    HEDDLE_UNROLL
    for (int e = 0; e < 2; ++e) {
      const int of_tile = Lane() % 4 * 2 + e;
      if (!s.Has(tile.first + 8 * h + of_tile)) continue;
      const int to = (row + of_tile) * M::L::kMergeStride;
      HEDDLE_UNROLL
      for (int d = 0; d < kDim / 16; ++d) {
        const float first = run.out[d][h][e], second = run.out[d][h][2 + e];
        if constexpr (kApart<Kv> == 1) {
          parts.SetAs(to + ColumnOf<Kv>(d), Vec8{{FloatToBits(first), FloatToBits(second)}});
        } else {
          parts.Set(to + ColumnOf<Kv>(d), first);
          parts.Set(to + ColumnOf<Kv>(d) + kApart<Kv>, second);
        }
      }
    }
  }
}

// Merges the warps' results for different keys, one row per warp, and stores it.
template <typename M>
HEDDLE_DEVICE void MergeAndStore(const AttentionParams& p, const SequenceView& s,
                                 const AttentionTile& tile, const M& memory) {
  constexpr int kRows = M::L::kRows;
  const Shared<float> parts = M::Merge();
  const int pairs = p.args.cache.head_dim / 2;
  for (int row = WarpIndex(); row < kRows && s.Has(tile.first + row); row += kWarps) {
    Softmax all = Softmax::Empty();
    for (int w = 0; w < kWarps; ++w) {
      all.max = Max(all.max, memory.states.Get(2 * (w * kRows + row)));
    }
    const float base = Softmax::Base(all.max);
    float factor[kWarps];
    HEDDLE_UNROLL
    for (int w = 0; w < kWarps; ++w) {
      factor[w] = Exp2(memory.states.Get(2 * (w * kRows + row)) - base);
      all.sum += factor[w] * memory.states.Get(2 * (w * kRows + row) + 1);
    }
    const RowEnd end = EndOf(p, tile, s.Head(tile.first + row), all);
    for (int i = Lane(); i < pairs; i += 32) {
      float low = 0, high = 0;
      HEDDLE_UNROLL
      for (int w = 0; w < kWarps; ++w) {
        const auto pair =
            parts.template GetAs<Vec8>((w * kRows + row) * M::L::kMergeStride + 2 * i);
        low += factor[w] * BitsToFloat(pair.word[0]);
        high += factor[w] * BitsToFloat(pair.word[1]);
      }
      flash::StorePair(p, s, tile, row, 2 * i, low * end.inverse, high * end.inverse);
    }
    if (Lane() == 0) StoreLse(p, s, tile, row, end.lse);
  }
}

// The last block to come here of those with parts of the same rows merges the parts. Nobody waits:
// whoever is not the last is done.
template <typename M>
HEDDLE_DEVICE void MergeIfLast(const AttentionParams& p, const SequenceView& s,
                               const AttentionTile& tile, const M& memory) {
  const AttentionMerge parts = p.tile_merges[tile.merge];
  FenceDevice();
  SyncThreads();  // all threads' results are out, and all have read the states
  if (ThreadX() == 0) {
    int32_t* counter = p.merge_counters + tile.merge * p.args.cache.n_kv_heads + s.kv_head;
    const bool is_last = AtomicAddGlobal(counter, 1) == parts.own.count - 1;
    if (is_last) *counter = 0;
    memory.states.Set(0, is_last ? 1.0f : 0.0f);
  }
  SyncThreads();
  if (memory.states.Get(0) == 0) return;
  FenceDevice();
  for (int row = WarpIndex(); row < M::L::kRows && s.Has(tile.first + row); row += kWarps) {
    merge::MergeRow<4>(p, s, {parts, row, s.kv_head}, BFloat16());
  }
}

template <typename Kv, int kDim, int kHalves, bool kTrees>
HEDDLE_DEVICE void Attend(const AttentionParams& p, const AttentionTile& tile) {
  using M = flash::Memory<Kv, kDim, /*kDecodes=*/true>;
  using L = typename M::L;
  const SequenceView s(p, tile, BlockY(), kTrees);
  const KeyRange keys(p.batch, s, tile, 8 * kHalves);
  const M memory{SharedArena()};

  flash::StagedKeys<Kv, M> staged(p, s, keys, memory);
  staged.FindFirst();
  WaitForPrevious();  // for queries, and the newest keys
  SyncThreads();
  staged.LoadFirst();
  flash::LoadQueries<Kv>(p, s, tile, memory);
  SyncThreads();

  Running<kDim, kHalves> run;
  HEDDLE_UNROLL
  for (int h = 0; h < kHalves; ++h) {
    run.max[h] = -Infinity();
    run.sum[h] = 0;
    HEDDLE_UNROLL
    for (int d = 0; d < kDim / 16; ++d) {
      HEDDLE_UNROLL
      for (int e = 0; e < 4; ++e) run.out[d][h][e] = 0;
    }
  }
  HEDDLE_UNROLL
  for (int d = 0; d < kDim / 16; ++d) {
    LoadMatrix4(run.q[d], memory.q, Lane() % 16 * L::kQStride + d * 16 + Lane() / 16 * 8);
  }
  const Visible<kHalves> visible(p, s, tile, keys);
  for (int first = keys.begin; first < keys.end; first += kKeys) {
    const int stage = staged.Next(first);
    const int mine = WarpIndex() * L::kWarpKeys;
    const KeysAt at = {first + mine, stage * L::kStage + mine * L::kStride, stage * kKeys + mine};
    float scores[L::kKeyTiles][4];
    Scores<Kv>(p, s, tile, memory, at, visible, run, scores);
    UpdateSoftmax(scores, run);
    AddValues<Kv>(memory, at, scores, run);
  }
  CopyAsyncWait<0>();  // for the case of an empty range
  SyncThreads();
  LeaveResults<Kv>(s, tile, memory, run);
  SyncThreads();
  MergeAndStore(p, s, tile, memory);
  if (tile.merge >= 0) MergeIfLast(p, s, tile, memory);
}

// Blocks per multiprocessor. A stage is a chain of loads, conversions, products and exponentials,
// which other blocks' stages overlap.
template <int kDim, int kHalves>
constexpr int kBlocks = kDim <= 128 ? 4 - kHalves : 1;

template <typename Kv, int kDim, int kHalves, bool kTrees>
HEDDLE_KERNEL HEDDLE_BOUNDS(kThreads, (kBlocks<kDim, kHalves>))
    AttentionDecodeKernel(HEDDLE_PARAMS(AttentionParams, p)) {
  AllowNext();
  for (int i = BlockX(); i < p.n_tiles; i += GridX()) {
    if (i != BlockX()) SyncThreads();       // the last tile's memory is free now
    const AttentionTile tile = p.tiles[i];  // in registers: stores cannot make it be read again
    Attend<Kv, kDim, kHalves, kTrees>(p, tile);
  }
}

template <typename Kv, int kDim, int kHalves>
Error LaunchHalves(const AttentionParams& params, Stream stream) {
  LaunchShape shape = flash::ShapeOf(params);
  shape.shared_bytes = flash::Layout<Kv, kDim, true>::SharedBytes();
  return params.batch.tree_mask != nullptr
             ? Launch(AttentionDecodeKernel<Kv, kDim, kHalves, true>, shape, stream, params)
             : Launch(AttentionDecodeKernel<Kv, kDim, kHalves, false>, shape, stream, params);
}

// This one also serves prompts.
template <typename Kv>
Error LaunchType(const AttentionParams& params, Stream stream) {
  if (params.tile_rows == kPrefillTileRows) return flash::LaunchPrefill<Kv>(params, stream);
  return flash::ForDim(params.args.cache.head_dim, [&]<int kDim>() {
    return params.tile_rows == kNarrowTileRows ? LaunchHalves<Kv, kDim, 1>(params, stream)
                                               : LaunchHalves<Kv, kDim, 2>(params, stream);
  });
}

}  // namespace decode
}  // namespace heddle::kernels::cuda
