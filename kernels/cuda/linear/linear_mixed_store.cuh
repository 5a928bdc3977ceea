// The end of a block of linear_mixed.cuh: sums in registers become outputs. They pass through
// shared memory, where x was, because what a thread has is a column of the output, and what memory
// wants is rows. Blocks that share rows leave their sums in memory first.
#pragma once

#include "kernels/cuda/linear/linear_mixed_stages.cuh"
#include "kernels/cuda/primitives/group.cuh"

namespace heddle::kernels::cuda {
namespace mixed {

// Sums of a thread: of rows g and g + 8 of its warp's 16 in each tile, as WarpgroupMma has them.
template <typename S>
using Sums = float[kTiles][S::kXTiles][4];

// Calls fn(row of the block, row of x, sum) for this thread's sums of rows [first, first + count)
// of x; both are multiples of 8.
template <typename S, typename Fn>
HEDDLE_DEVICE void ForSums(const Sums<S>& sums, int first, int count, Fn fn) {
  HEDDLE_UNROLL
  for (int tile = 0; tile < kTiles; ++tile) {
    HEDDLE_UNROLL
    for (int n = 0; n < S::kXTiles; ++n) {
      if (8 * n < first || 8 * n >= first + count) continue;
      HEDDLE_UNROLL
      for (int e = 0; e < 4; ++e) {
        const int row = (WarpIndex() * kTiles + tile) * skinny::kTileRows + Lane() / 4 + e / 2 * 8;
        fn(row, 8 * n + 2 * (Lane() % 4) + e % 2, sums[tile][n][e]);
      }
    }
  }
}

constexpr int kWide = 4;  // neighbouring outputs that a thread stores together
using Four = Group<float, kWide>;

// Outputs that a thread stores, of whatever row of x: [row, row + kWide) of the block's rows of
// weights, for kGated the gate's.
template <typename S>
struct OutputRows {
  int row;
  int up;     // kGated: where their up rows begin
  int64_t r;  // output column
  int count;  // below kWide at the end of the matrix

  // `i` counts the block's output columns in steps of kWide.
  HEDDLE_DEVICE OutputRows(const LinearParams& p, int i) {
    const bool gated = p.epilogue == Epilogue::kGated;
    const int at = i * kWide;
    row =
        gated ? at / skinny::kTileRows * (kTiles * skinny::kTileRows) + at % skinny::kTileRows : at;
    up = row + skinny::kTileRows;
    r = static_cast<int64_t>(BlockX()) * (gated ? S::kRows / kTiles : S::kRows) + at;
    const int64_t left = OutputCols(p) - r;
    count = left < kWide ? static_cast<int>(left) : kWide;
  }
};

HEDDLE_DEVICE float FactorOf(const LinearParams& p, int64_t r) {
  return p.weight.row_factors == nullptr ? 1.0f : p.weight.row_factors[r];
}

// Of weight rows [r, r + kWide).
HEDDLE_DEVICE Four FactorsOf(const LinearParams& p, int64_t r) {
  if (p.weight.row_factors != nullptr) return LoadAnywhere<kWide>(p.weight.row_factors + r);
  return {{1.0f, 1.0f, 1.0f, 1.0f}};
}

// Stores the outputs of row t that `to` names, all kWide, at once; y, up: their sums.
template <typename O, typename S>
HEDDLE_DEVICE void StoreFour(const LinearParams& p, int64_t t, const OutputRows<S>& to,
                             const Four& value) {
  O* at = p.out.row<O>(t) + to.r;
  const bool adds = p.epilogue == Epilogue::kAdd;
  Group<O, kWide> out = {};
  if (adds) out = LoadGroup<kWide>(at);
  HEDDLE_UNROLL
  for (int e = 0; e < kWide; ++e) {
    out.item[e] = RoundTo(adds ? ToFloat(out.item[e]) + value.item[e] : value.item[e], O());
  }
  StoreGroup(at, out);
}

// Whether groups of kWide outputs begin at multiples of their size, in every row.
HEDDLE_DEVICE bool IsWide(const LinearParams& p) {
  const uint64_t bytes = kWide * (p.out_f32 ? sizeof(float) : sizeof(BFloat16));
  return reinterpret_cast<uint64_t>(p.out.data) % bytes == 0 && p.out.stride % kWide == 0 &&
         OutputCols(p) % kWide == 0;
}

// By all consumers: stores what the block has of rows [first, first + count) of its x, from their
// sums in `part`, [count, kOutStride].
template <typename S>
HEDDLE_DEVICE void StorePart(const LinearParams& p, const BlockRows& rows, int first, int count,
                             Shared<float> part) {
  const bool gated = p.epilogue == Epilogue::kGated;
  const int units = (gated ? S::kRows / kTiles : S::kRows) / kWide;
  const int step = kConsumerThreads / units;
  const OutputRows<S> to(p, ThreadX() % units);
  if (to.count <= 0) return;
  const bool wide = IsWide(p);
  Four factors = {}, up_factors = {};  // the same in every row of x
  if (wide) factors = FactorsOf(p, to.r);
  if (wide && gated) up_factors = FactorsOf(p, to.r + p.half);
  HEDDLE_UNROLL_BY(1)
  for (int t = ThreadX() / units; t < count; t += step) {
    const Shared<float> sums = part.From(t * S::kOutStride);
    const int64_t out = rows.Out(first + t);
    if (!wide) {
      HEDDLE_UNROLL_BY(1)
      for (int e = 0; e < to.count; ++e) {
        const float up = gated ? sums.Get(to.up + e) * FactorOf(p, to.r + p.half + e) : 0.0f;
        StoreOutput<BFloat16>(p, out, to.r + e, sums.Get(to.row + e) * FactorOf(p, to.r + e), up);
      }
      continue;
    }
    Four value = sums.GetAs<Four>(to.row);
    Four up = gated ? sums.GetAs<Four>(to.up) : Four{};
    HEDDLE_UNROLL
    for (int e = 0; e < kWide; ++e) {
      value.item[e] *= factors.item[e];
      if (gated) up.item[e] *= up_factors.item[e];
    }
    FinishOutputs<kWide>(p, out, to.r, value, up);
    if (p.out_f32) {
      StoreFour<float>(p, out, to, value);
    } else {
      StoreFour<BFloat16>(p, out, to, value);
    }
  }
}

// Stores the block's outputs, kOutRows rows of x at a time: fill(first, part) puts their sums into
// shared memory, where x was.
template <typename S, typename Fill>
HEDDLE_DEVICE void StoreParts(const LinearParams& p, const BlockRows& rows, Fill fill) {
  SharedArena arena;
  const Shared<float> part = arena.Take<float>(S::kOutRows * S::kOutStride);
  for (int first = 0; first < rows.count; first += S::kOutRows) {
    NamedBarrierSync(kConsumersMeet, kConsumerThreads);  // nobody reads what lies there any more
    fill(first, part);
    NamedBarrierSync(kConsumersMeet, kConsumerThreads);
    const int left = rows.count - first;
    StorePart<S>(p, rows, first, left < S::kOutRows ? left : S::kOutRows, part);
  }
}

// Of a block that has all columns.
template <typename S>
HEDDLE_DEVICE void StoreSums(const LinearParams& p, const BlockRows& rows, const Sums<S>& sums) {
  StoreParts<S>(p, rows, [&](int first, Shared<float> part) {
    ForSums<S>(sums, first, S::kOutRows, [&](int row, int t, float sum) {
      part.Set((t - first) * S::kOutStride + row, sum);
    });
  });
}

// Of blocks that share rows: leaves the sums in memory, [splits, kXRows, kRows] for each tile of
// the output. True for the last one to come, which then finds all of them from `all` on.
template <typename S>
HEDDLE_DEVICE bool LeaveSums(const LinearParams& p, int splits, const Memory<S>& memory,
                             const Sums<S>& sums, const float*& all) {
  constexpr int kTile = S::kXRows * S::kRows;
  const int tile = BlockY() * GridX() + BlockX();
  float* mine = p.partial + (static_cast<int64_t>(tile) * splits + BlockZ()) * kTile;
  all = p.partial + static_cast<int64_t>(tile) * splits * kTile;
  ForSums<S>(sums, 0, S::kXRows,
             [&](int row, int t, float sum) { mine[t * S::kRows + row] = sum; });
  FenceDevice();
  NamedBarrierSync(kConsumersMeet, kConsumerThreads);
  if (ThreadX() == 0) memory.arrived.Set(0, AtomicAddGlobal(p.counters + tile, 1));
  NamedBarrierSync(kConsumersMeet, kConsumerThreads);
  if (memory.arrived.Get(0) != splits - 1) return false;
  FenceDevice();
  if (ThreadX() == 0) p.counters[tile] = 0;  // for the next product
  return true;
}

// Adds up what the blocks left of rows [first, first + kOutRows) of x, in the order of their
// columns; kBatch loads of 16 bytes for each part are on their way at once.
template <typename S>
HEDDLE_DEVICE void AddParts(const float* all, int splits, int first, Shared<float> part) {
  constexpr int kUnits = S::kRows / kWide;
  constexpr int kStep = kConsumerThreads / kUnits;
  constexpr int kBatch = S::kOutRows / kStep;
  const int row = ThreadX() % kUnits * kWide;
  const int t = ThreadX() / kUnits;
  const float* from = all + (first + t) * S::kRows + row;
  Four sums[kBatch] = {};
  HEDDLE_UNROLL_BY(2)
  for (int s = 0; s < splits; ++s) {
    HEDDLE_UNROLL
    for (int i = 0; i < kBatch; ++i) {
      const Vec16 one = LoadFresh16(from + (s * S::kXRows + i * kStep) * S::kRows);
      HEDDLE_UNROLL
      for (int e = 0; e < kWide; ++e) sums[i].item[e] += BitsToFloat(one.word[e]);
    }
  }
  HEDDLE_UNROLL
  for (int i = 0; i < kBatch; ++i) part.SetAs((t + i * kStep) * S::kOutStride + row, sums[i]);
}

template <typename S>
HEDDLE_DEVICE void ShareSums(const LinearParams& p, const BlockRows& rows, int splits,
                             const Memory<S>& memory, const Sums<S>& sums) {
  const float* all = nullptr;
  if (!LeaveSums<S>(p, splits, memory, sums, all)) return;
  StoreParts<S>(p, rows,
                [&](int first, Shared<float> part) { AddParts<S>(all, splits, first, part); });
}

}  // namespace mixed
}  // namespace heddle::kernels::cuda
