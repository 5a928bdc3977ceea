// Paged attention of prompt chunks on sm_90a: matrix instructions of warpgroups, tiles brought by
// bulk copies. Sources: Shah et al., "FlashAttention-3", 2024; Dao et al. 2022.
//
// A block has three warpgroups. The first one produces: one of its warps walks the spans of a
// sequence and has whole pages copied into shared memory, page by page as boxes of a tensor map
// over the pool, kKeys keys per stage. The two others consume: 64 packed rows each (query rows x
// the query heads of one KV head), all keys. They take turns on the tensor cores: while one
// multiplies, the other one takes exponentials; and each has the scores of the next stage computed
// while it adds up the values of this one.
//
// Keys are counted in the order of the spans, not of the columns of a stage: a page that is not
// full leaves columns without a key. `keys` says which key a column holds; stages without such
// columns that all rows see need not look at it. Columns without a key have weight zero, but zero
// times garbage need not be zero, so the producer clears those values itself.
//
// Its limits at head_dim 128, for a stage of 128 x 128 per warpgroup pair: 8.4 MFLOP, 2048 clocks
// of the tensor cores (2048 FMA a clock); 16384 exponentials, 1024 clocks of 16 a clock, and some
// 600 of scaling, maxima, sums and conversions, hidden behind the other group's products; 64 KiB
// from the L2, 32 bytes a clock. At head_dim 64 products and exponentials take 1024 clocks each,
// and the overlap decides. There are as many blocks as multiprocessors; they take tiles from the
// longest to the shortest, forth and back, and the next tile's keys are copied while one tile ends.
// Steps with trees of drafts have separate kernels, whose masks cost the others no registers.
// Shared memory: 160 KiB at head_dim 128. Registers: 40 + 2 x 232 of 512.
//
// Over caches of F8 scores are products of 8 bits (attention_hopper_f8.h): a line of keys has 128
// elements, as they lie in the cache, and 512 clocks less are spent on products of a stage.
#pragma once

#include "kernels/cuda/attention/attention_hopper_codes.cuh"

namespace heddle::kernels::cuda {
namespace hopper {

// The state of a thread along the keys: its share of rows g and g + 8 of its warp's 16.
template <int kDim>  // of values
struct Rows {
  float out[kDim / 8][4];
  uint32_t weights[kKeys / 16][4];  // of the next stage of values, as a left matrix
  float max[2];                     // of scores before scaling
  float sum[2];                     // this thread's part
  float scale[2];                   // of scores of codes; else 1
  int begin[2], end[2];             // keys that the rows see; in trees, those before their own
};

// Loads the consumer's 64 rows of queries; zeros if the tile ends early.
template <typename Kv, int kDim>
HEDDLE_DEVICE void LoadQueries(const AttentionParams& p, const Walk& walk,
                               const Memory<Kv, kDim>& memory) {
  constexpr int kUnits = kDim / 8;
  const int at = Consumer() * Memory<Kv, kDim>::kQueries;
  NamedBarrierSync(kRowsThere + Consumer(), kGroupThreads);  // the last tile's queries are free now
  HEDDLE_UNROLL_BY(4)
  for (int i = ThreadX() % kGroupThreads; i < kGroupRows * kUnits; i += kGroupThreads) {
    const int row = i / kUnits;
    const int unit = i % kUnits;
    const int packed = walk.tile.first + Consumer() * kGroupRows + row;
    Vec16 value = {};
    if (walk.s.Has(packed)) {
      const BFloat16* q = p.args.q.row<BFloat16>(QueryRow(p, walk.tile, walk.s, packed)) +
                          static_cast<int64_t>(walk.s.Head(packed)) * kDim;
      value = UnitAs(LoadFresh16(q + 8 * unit), Kv());
    }
    memory.q.SetAs(at + unit / 8 * kGroupRows * kLineElements + SwizzledUnit(row, unit % 8), value);
  }
  FenceProxies();
  NamedBarrierSync(kRowsThere + Consumer(), kGroupThreads);
}

template <typename M, int kDim>
HEDDLE_DEVICE void StartRows(const AttentionParams& p, const Walk& walk, const M& memory,
                             Rows<kDim>& rows) {
  HEDDLE_UNROLL
  for (int h = 0; h < 2; ++h) {
    const int packed = walk.tile.first + RowOfThread(h);
    const int begin = walk.s.FirstKey(p.batch, packed);
    const int end = walk.s.tree ? walk.s.OwnKeys() : walk.s.EndKey(packed);
    rows.begin[h] = begin > walk.keys.begin ? begin : walk.keys.begin;
    rows.end[h] = end < walk.keys.end ? end : walk.keys.end;
    rows.max[h] = -Infinity();
    rows.sum[h] = 0;
    rows.scale[h] = 1.0f;
    if constexpr (M::kScales > 0) rows.scale[h] = memory.scales.Get(RowOfThread(h));
  }
  HEDDLE_UNROLL
  for (int d = 0; d < kDim / 8; ++d) {
    HEDDLE_UNROLL
    for (int e = 0; e < 4; ++e) rows.out[d][e] = 0;
  }
}

// Starts scores = q k^T of a stage.
template <typename Kv, int kDim>
HEDDLE_DEVICE void MultiplyKeys(const Memory<Kv, kDim>& memory, int stage,
                                float (&scores)[kKeyTiles][4]) {
  using M = Memory<Kv, kDim>;
  const uint32_t q = AddressOf(memory.q, Consumer() * M::kQueries);
  const uint32_t k = AddressOf(memory.k, stage * M::kKeyStage);
  HEDDLE_UNROLL
  for (int d = 0; d < kDim * static_cast<int>(sizeof(Kv)) / 32; ++d) {
    const uint32_t within = d % 4 * 32;  // bytes into the lines
    WarpgroupMma(scores, MatrixDescriptor(q + d / 4 * kGroupRows * 128 + within, 0, kPatternBytes),
                 MatrixDescriptor(k + d / 4 * kKeys * 128 + within, 0, kPatternBytes), d > 0, Kv());
  }
  WarpgroupCommit();
}

// Starts out += weights v, or = if !adds.
template <typename Kv, int kDim>
HEDDLE_DEVICE void MultiplyValues(const Memory<Kv, kDim>& memory, int stage, bool adds,
                                  Rows<ValueDim(kDim)>& rows) {
  const uint32_t v = AddressOf(memory.v, stage * Memory<Kv, kDim>::kValueStage);
  HEDDLE_UNROLL
  for (int n = 0; n < kKeys / 16; ++n) {
    WarpgroupMmaTransposed(rows.out, rows.weights[n],
                           MatrixDescriptor(v + n * 16 * 128, kKeys * 128, kPatternBytes),
                           adds || n > 0, ValueOf<Kv>());
  }
  WarpgroupCommit();
}

// The rows of a tree of drafts: their masks tell which of their own keys they see.
template <typename M, int kDim>
HEDDLE_DEVICE void MaskByTree(const AttentionParams& p, const Walk& walk, const M& memory,
                              int stage, const Rows<kDim>& rows, float (&scores)[kKeyTiles][4]) {
  HEDDLE_UNROLL
  for (int h = 0; h < 2; ++h) {
    const uint64_t mask = walk.s.TreeMask(p.batch, walk.tile.first + RowOfThread(h));
    HEDDLE_UNROLL
    for (int n = 0; n < kKeyTiles; ++n) {
      const auto pair = memory.keys.template GetAs<Vec8>(stage * kKeys + 8 * n + 2 * (Lane() % 4));
      HEDDLE_UNROLL
      for (int e = 0; e < 2; ++e) {
        const int key = static_cast<int>(pair.word[e]);
        const bool seen =
            key >= rows.begin[h] && key < walk.keys.end && TreeSees(mask, key - walk.s.OwnKeys());
        scores[n][2 * h + e] = seen ? scores[n][2 * h + e] : -Infinity();
      }
    }
  }
}

// Sets scores that rows must not see to -infinity.
template <typename M, int kDim>
HEDDLE_DEVICE void MaskScores(const AttentionParams& p, const Walk& walk, const M& memory,
                              int stage, const Rows<kDim>& rows, float (&scores)[kKeyTiles][4]) {
  const int first = memory.bounds.Get(2 * stage);
  const int last = memory.bounds.Get(2 * stage + 1);
  bool all = true;
  HEDDLE_UNROLL
  for (int h = 0; h < 2; ++h) all = all && first >= rows.begin[h] && last < rows.end[h];
  if (Ballot(all) == kFullMask) return;
  if (walk.s.tree) return MaskByTree(p, walk, memory, stage, rows, scores);
  HEDDLE_UNROLL
  for (int n = 0; n < kKeyTiles; ++n) {
    const auto pair = memory.keys.template GetAs<Vec8>(stage * kKeys + 8 * n + 2 * (Lane() % 4));
    HEDDLE_UNROLL
    for (int e = 0; e < 4; ++e) {
      const int key = static_cast<int>(pair.word[e % 2]);
      const bool seen = key >= rows.begin[e / 2] && key < rows.end[e / 2];
      scores[n][e] = seen ? scores[n][e] : -Infinity();
    }
  }
}

// The weight of a score is 2^(factor * (score - max)).
template <bool kCapped>
HEDDLE_DEVICE float FactorOf(const AttentionArgs& a) {
  return (kCapped ? a.softcap : a.scale) * kLog2E;
}

// Caps scores, which `factor` completes; tanh x = 1 - 2 / (1 + e^2x).
HEDDLE_DEVICE void CapScores(const AttentionArgs& a, const float (&scale)[2],
                             float (&scores)[kKeyTiles][4]) {
  const float to_exponent = 2.0f * kLog2E * a.scale / a.softcap;
  HEDDLE_UNROLL
  for (int n = 0; n < kKeyTiles; ++n) {
    HEDDLE_UNROLL
    for (int e = 0; e < 4; ++e) {
      scores[n][e] = 1.0f - 2.0f / (1.0f + Exp2(scores[n][e] * (to_exponent * scale[e / 2])));
    }
  }
}

// Turns scores into weights; sums against a smaller maximum have to be rescaled.
template <int kDim>
HEDDLE_DEVICE void Weigh(const float (&factor)[2], float (&scores)[kKeyTiles][4], Rows<kDim>& rows,
                         float (&shrink)[2]) {
  HEDDLE_UNROLL
  for (int h = 0; h < 2; ++h) {
    float max = rows.max[h];
    HEDDLE_UNROLL
    for (int n = 0; n < kKeyTiles; ++n) {
      max = Max(max, Max(scores[n][2 * h], scores[n][2 * h + 1]));
    }
    max = Max(max, ShuffleXor(max, 1));
    max = Max(max, ShuffleXor(max, 2));
    const float base = Softmax::Base(max) * factor[h];
    shrink[h] = Exp2(rows.max[h] * factor[h] - base);
    rows.max[h] = max;
    float sum = 0;
    HEDDLE_UNROLL
    for (int n = 0; n < kKeyTiles; ++n) {
      scores[n][2 * h] = Exp2(scores[n][2 * h] * factor[h] - base);
      scores[n][2 * h + 1] = Exp2(scores[n][2 * h + 1] * factor[h] - base);
      sum += scores[n][2 * h] + scores[n][2 * h + 1];
    }
    rows.sum[h] = rows.sum[h] * shrink[h] + sum;
  }
}

template <int kDim>
HEDDLE_DEVICE void Shrink(const float (&shrink)[2], Rows<kDim>& rows) {
  HEDDLE_UNROLL
  for (int d = 0; d < kDim / 8; ++d) {
    HEDDLE_UNROLL
    for (int e = 0; e < 4; ++e) rows.out[d][e] *= shrink[e / 2];
  }
}

// Sums have the layout of a left matrix, so weights never leave their threads.
template <typename Kv, int kDim>
HEDDLE_DEVICE void PackWeights(const float (&scores)[kKeyTiles][4], Rows<kDim>& rows) {
  HEDDLE_UNROLL
  for (int n = 0; n < kKeys / 16; ++n) {
    HEDDLE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float* pair = scores[2 * n + i / 2] + i % 2 * 2;
      rows.weights[n][i] = Pack2(pair[0], pair[1], Kv());
    }
  }
}

// Reports that a warp is done with a stage.
HEDDLE_DEVICE void Leave(BlockBarriers barriers, int empty) {
  SyncWarp();
  if (Lane() == 0) BarrierArrive(barriers, empty);
}

// Word i of the four threads that share rows becomes words 0..3 of thread i.
HEDDLE_DEVICE void Transpose4(uint32_t (&words)[4]) {
  HEDDLE_UNROLL
  for (int bit = 1; bit <= 2; bit *= 2) {
    const bool upper = (Lane() & bit) != 0;
    HEDDLE_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int low = bit == 1 ? 2 * i : i;
      const uint32_t got = ShuffleXor(upper ? words[low] : words[low + bit], bit);
      if (upper) {
        words[low] = got;
      } else {
        words[low + bit] = got;
      }
    }
  }
}

// Stores row g (h = 0) or g + 8 (h = 1) as a partial result.
template <int kDim>
HEDDLE_DEVICE void StorePartial(const AttentionParams& p, const Walk& walk, int row, int h,
                                float inverse, const Rows<kDim>& rows) {
  float* to = p.partial_out + PartialOf(p, walk.tile.partial + row, walk.s.kv_head) * kDim +
              2 * (Lane() % 4);
  HEDDLE_UNROLL
  for (int d = 0; d < kDim / 8; ++d) {
    *reinterpret_cast<Vec8*>(to + 8 * d) = {FloatToBits(rows.out[d][2 * h] * inverse),
                                            FloatToBits(rows.out[d][2 * h + 1] * inverse)};
  }
}

template <int kDim>
HEDDLE_DEVICE void StoreRows(const AttentionParams& p, const Walk& walk, const float (&factor)[2],
                             const Rows<kDim>& rows) {
  HEDDLE_UNROLL
  for (int h = 0; h < 2; ++h) {
    float sum = rows.sum[h];
    sum += ShuffleXor(sum, 1);
    sum += ShuffleXor(sum, 2);
    const int row = RowOfThread(h);
    const int packed = walk.tile.first + row;
    const bool there = walk.s.Has(packed);
    RowEnd end = {0, 0};
    BFloat16* out = nullptr;
    if (there) {
      const int head = walk.s.Head(packed);
      end = EndOf(p, walk.tile, head, {rows.max[h] * factor[h], sum});
      if (Lane() % 4 == 0) StoreLse(p, walk.s, walk.tile, row, end.lse);
      if (walk.tile.partial < 0) {
        out = p.args.out.row<BFloat16>(walk.s.Row(packed)) + static_cast<int64_t>(head) * kDim;
      } else {
        StorePartial(p, walk, row, h, end.inverse, rows);
      }
    }
    if (walk.tile.partial >= 0) continue;
    HEDDLE_UNROLL
    for (int d = 0; d < kDim / 8; d += 4) {
      Vec16 unit;
      HEDDLE_UNROLL
      for (int i = 0; i < 4; ++i) {
        unit.word[i] = Pack2(rows.out[d + i][2 * h] * end.inverse,
                             rows.out[d + i][2 * h + 1] * end.inverse, BFloat16());
      }
      Transpose4(unit.word);
      if (there) *reinterpret_cast<Vec16*>(out + (d + Lane() % 4) * 8) = unit;
    }
  }
}

template <typename Kv, int kDim, bool kCapped>
HEDDLE_DEVICE void Attend(const AttentionParams& p, const Walk& walk,
                          const Memory<Kv, kDim>& memory, Turn& turn) {
  const BlockBarriers& barriers = memory.barriers;
  Rows<ValueDim(kDim)> rows;
  StartRows(p, walk, memory, rows);
  float factor[2];  // caps come behind the scales
  HEDDLE_UNROLL
  for (int h = 0; h < 2; ++h) {
    factor[h] = FactorOf<kCapped>(p.args) * (kCapped ? 1.0f : rows.scale[h]);
  }
  float scores[kKeyTiles][4];
  float shrink[2];
  // The scores of stage `at` are complete and become weights.
  const auto weigh = [&](const Turn& at) {
    if constexpr (kCapped) CapScores(p.args, rows.scale, scores);
    MaskScores(p, walk, memory, at.stage(), rows, scores);
    Leave(barriers, kKeysEmpty + at.stage());
    Weigh(factor, scores, rows, shrink);
  };

  BarrierWait(barriers, kKeysFull + turn.stage(), turn.parity());
  WarpgroupFence();
  MultiplyKeys<Kv, kDim>(memory, turn.stage(), scores);
  WarpgroupWait<0>();
  HoldSums(scores);
  weigh(turn);
  PackWeights<ValueOf<Kv>>(scores, rows);
  for (int j = 1; j < walk.stages; ++j) {
    const Turn last = turn;
    ++turn.count;
    BarrierWait(barriers, kKeysFull + turn.stage(), turn.parity());
    NamedBarrierSync(kTurn + Consumer(), kConsumers * kGroupThreads);
    HoldSums(scores);
    HoldSums(rows.out);
    WarpgroupFence();
    MultiplyKeys<Kv, kDim>(memory, turn.stage(), scores);
    BarrierWait(barriers, kValuesFull + last.stage(), last.parity());
    WarpgroupFence();
    MultiplyValues<Kv, kDim>(memory, last.stage(), j > 1, rows);
    NamedBarrierArrive(kTurn + 1 - Consumer(), kConsumers * kGroupThreads);
    WarpgroupWait<1>();
    HoldSums(scores);
    weigh(turn);
    WarpgroupWait<0>();
    HoldSums(rows.out);
    Leave(barriers, kValuesEmpty + last.stage());
    Shrink(shrink, rows);
    PackWeights<ValueOf<Kv>>(scores, rows);
  }
  BarrierWait(barriers, kValuesFull + turn.stage(), turn.parity());
  HoldSums(rows.out);
  WarpgroupFence();
  MultiplyValues<Kv, kDim>(memory, turn.stage(), walk.stages > 1, rows);
  WarpgroupWait<0>();
  HoldSums(rows.out);
  Leave(barriers, kValuesEmpty + turn.stage());
  ++turn.count;
  StoreRows(p, walk, factor, rows);
}

template <typename Kv, int kDim, bool kCapped, bool kTrees>
HEDDLE_DEVICE void Consume(const AttentionParams& p, const Memory<Kv, kDim>& memory) {
  Turn turn;
  Items items(p);
  if (Consumer() == 1) NamedBarrierArrive(kTurn, kConsumers * kGroupThreads);
  for (int item; items.Next(item);) {
    const Walk walk(p, item, kTrees);
    if constexpr (kHasScales<Kv>) {
      LoadCodes(p, walk, memory);
    } else {
      LoadQueries<Kv, kDim>(p, walk, memory);
    }
    Attend<Kv, kDim, kCapped>(p, walk, memory, turn);
  }
  // Takes the turn that was given last.
  if (Consumer() == 0) NamedBarrierSync(kTurn, kConsumers * kGroupThreads);
}

template <typename Kv, int kDim, bool kCapped, bool kTrees>
HEDDLE_KERNEL HEDDLE_BOUNDS(kThreads, 1)
    AttentionHopperKernel(HEDDLE_PARAMS(HopperAttentionParams, params)) {
#if HEDDLE_HAS_SM90A
  AllowNext();
  const Memory<Kv, kDim> memory{SharedArena()};
  if (ThreadX() == 0) {
    PrefetchTensorMap(params.keys);
    PrefetchTensorMap(params.values);
    for (int s = 0; s < kStages; ++s) {
      BarrierInit(memory.barriers, kKeysFull + s, 1);
      BarrierInit(memory.barriers, kValuesFull + s, 1);
      BarrierInit(memory.barriers, kKeysEmpty + s, kConsumers * 4);  // warps
      BarrierInit(memory.barriers, kValuesEmpty + s, kConsumers * 4);
    }
    BarrierInit(memory.barriers, kValuesRaw, 1);
    BarriersInitialised();
  }
  SyncThreads();
  WaitForPrevious();
  if (ThreadX() < kGroupThreads) {
    RegistersDown<40>();
    if (WarpIndex() == 0) Produce<Kv, kDim, kTrees>(params, memory);
  } else {
    RegistersUp<232>();
    Consume<Kv, kDim, kCapped, kTrees>(params.attention, memory);
  }
#endif
}

template <typename Kv, int kDim, bool kTrees>
Error LaunchDim(const HopperAttentionParams& params, int blocks, Stream stream) {
  const LaunchShape shape = {
      .grid_x = blocks, .threads = kThreads, .shared_bytes = Memory<Kv, kDim>::kSharedBytes};
  return params.attention.args.softcap > 0
             ? Launch(AttentionHopperKernel<Kv, kDim, true, kTrees>, shape, stream, params)
             : Launch(AttentionHopperKernel<Kv, kDim, false, kTrees>, shape, stream, params);
}

template <typename Kv, int kDim>
Error LaunchStep(const HopperAttentionParams& params, int blocks, Stream stream) {
  return params.attention.batch.tree_mask != nullptr
             ? LaunchDim<Kv, kDim, true>(params, blocks, stream)
             : LaunchDim<Kv, kDim, false>(params, blocks, stream);
}

template <typename Kv>
Error LaunchType(const HopperAttentionParams& params, int blocks, Stream stream) {
  return params.attention.args.cache.head_dim == 64 ? LaunchStep<Kv, 64>(params, blocks, stream)
                                                    : LaunchStep<Kv, 128>(params, blocks, stream);
}

}  // namespace hopper

// The kernels are in two sources, so that they compile in parallel.
Error LaunchAttentionHopperBF16(const HopperAttentionParams& params, int blocks, Stream stream);
Error LaunchAttentionHopperF16(const HopperAttentionParams& params, int blocks, Stream stream);

}  // namespace heddle::kernels::cuda
