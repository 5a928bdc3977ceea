// The end of a block of two consuming warpgroups (linear_mixed.cuh, linear_bulk.cuh): sums in
// registers become outputs. They pass through the shared memory of x, because a thread has a column
// of the output, while memory wants rows. Blocks that share rows first store their sums in memory,
// and each adds up a slice of them.
//
// A block has S::kRows weight rows: 64 for each of a consumer's kTiles tiles. They are in units of
// S::kUnit rows that the tiles take in turn; for kGated every second unit has the up rows of the
// gate rows before it.
#pragma once

#include "kernels/cuda/linear/epilogue.cuh"
#include "kernels/cuda/primitives/group.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/primitives/primitives_hopper.cuh"

namespace heddle::kernels::cuda {
namespace sums {

constexpr int kConsumers = 2;  // warpgroups
constexpr int kConsumerThreads = kConsumers * kGroupThreads;
constexpr int kConsumerWarps = kConsumerThreads / 32;
constexpr int kTiles = 2;  // of 64 weight rows, a consumer
constexpr int kRows = kConsumers * kTiles * 64;
// Rows of x whose sums pass through shared memory at once, on their way out: a slice. kSliceStride
// is the number of floats from one to the next: four lanes' pairs of rows and eight rows of weights
// have no bank conflicts.
constexpr int kSliceRows = 32;
constexpr int kSliceTiles = kSliceRows / 8;
constexpr int kSliceStride = kRows + 4;
constexpr int kSliceFloats = kSliceRows * kSliceStride;

// Named barrier of the consumers.
constexpr int kConsumersMeet = 1;

// The rows of x and of the output that a block works on.
struct BlockRows {
  const int32_t* pairs = nullptr;  // [count] (row, choice) pairs; nullptr: rows from `first` on
  int first = 0;                   // with pairs: the row of codes of the first one
  int count = 0;
  int pairs_per_row = 1;
  HEDDLE_DEVICE int X(int t) const {
    return pairs == nullptr ? first + t : pairs[t] / pairs_per_row;
  }
  HEDDLE_DEVICE int Code(int t) const { return first + t; }  // row of codes
  HEDDLE_DEVICE int Out(int t) const { return pairs == nullptr ? first + t : pairs[t]; }
  HEDDLE_DEVICE int slices() const { return (count + kSliceRows - 1) / kSliceRows; }
};

// The part of a product that a block makes.
struct BlockPlace {
  int weights;    // its weight rows, in steps of kRows
  int tile;       // its weight rows and rows of x, among the product's tiles
  int part = 0;   // of the columns
  int parts = 1;  // blocks that share the tile
};

// The sums of a thread for both tiles, in the layout of WarpgroupMma.
template <typename S>
using Sums = float[kTiles][S::kXRows / 8][4];

template <typename S>
constexpr int Slices() {
  return (S::kXRows + kSliceRows - 1) / kSliceRows;
}

// Calls fn(row of the block, row of the slice, sum) for this thread's sums of a slice.
template <int kUnit, int kXTiles, typename Fn>
HEDDLE_DEVICE void ForSums(const float (&sums)[kTiles][kXTiles][4], int slice, Fn fn) {
  constexpr int kWarps = kUnit / 16;  // warps that share a unit
  const int unit = WarpIndex() / kWarps * (kTiles * kUnit) + WarpIndex() % kWarps * 16;
  HEDDLE_UNROLL
  for (int n = 0; n < kXTiles; ++n) {
    if (n / kSliceTiles != slice) continue;
    HEDDLE_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      HEDDLE_UNROLL
      for (int e = 0; e < 4; ++e) {
        fn(unit + tile * kUnit + Lane() / 4 + e / 2 * 8,
           8 * (n % kSliceTiles) + 2 * (Lane() % 4) + e % 2, sums[tile][n][e]);
      }
    }
  }
}

constexpr int kWide = 4;  // neighbouring outputs that a thread stores together
using Four = Group<float, kWide>;

// Outputs that a thread stores, for any row of x: [row, row + kWide) of the block's rows of
// weights, for kGated the gate's.
struct OutputRows {
  int row;
  int up;     // kGated: where their up rows begin
  int64_t r;  // output column
  int count;  // below kWide at the end of the matrix

  // `i` counts the block's output columns in steps of kWide.
  HEDDLE_DEVICE OutputRows(const LinearParams& p, int weights, int unit, int i) {
    const bool gated = p.epilogue == Epilogue::kGated;
    const int at = i * kWide;
    row = gated ? at / unit * (kTiles * unit) + at % unit : at;
    up = row + unit;
    r = static_cast<int64_t>(weights) * (gated ? kRows / kTiles : kRows) + at;
    const int64_t left = OutputCols(p) - r;
    count = left < kWide ? static_cast<int>(left) : kWide;
  }
};

HEDDLE_DEVICE float FactorOf(const LinearParams& p, int64_t r) {
  return p.weight.row_factors == nullptr ? 1.0f : p.weight.row_factors[r];
}

// The factors of weight rows [r, r + kWide).
HEDDLE_DEVICE Four FactorsOf(const LinearParams& p, int64_t r) {
  if (p.weight.row_factors != nullptr) return LoadAnywhere<kWide>(p.weight.row_factors + r);
  return {{1.0f, 1.0f, 1.0f, 1.0f}};
}

// Stores the outputs of row t that `to` names, all kWide, at once.
template <typename O>
HEDDLE_DEVICE void StoreFour(const LinearParams& p, int64_t t, const OutputRows& to,
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

// Called by all consumers: stores the block's part of a slice of its rows of x, from their sums in
// `part`, [., kSliceStride].
template <typename S>
HEDDLE_DEVICE void StorePart(const LinearParams& p, const BlockPlace& place, const BlockRows& rows,
                             int slice, Shared<float> part) {
  const bool gated = p.epilogue == Epilogue::kGated;
  const int first = slice * kSliceRows;
  const int count = rows.count - first < kSliceRows ? rows.count - first : kSliceRows;
  const int units = (gated ? kRows / kTiles : kRows) / kWide;
  const int step = kConsumerThreads / units;
  const OutputRows to(p, place.weights, S::kUnit, ThreadX() % units);
  if (to.count <= 0) return;
  const bool wide = IsWide(p);
  Four factors = {}, up_factors = {};  // the same in every row of x
  if (wide) factors = FactorsOf(p, to.r);
  if (wide && gated) up_factors = FactorsOf(p, to.r + p.half);
  HEDDLE_UNROLL_BY(1)
  for (int t = ThreadX() / units; t < count; t += step) {
    const Shared<float> sums = part.From(t * kSliceStride);
    const int64_t out = rows.Out(first + t);
    float scale = 1.0f;
    if constexpr (S::kScalesX) scale = p.x_scales[rows.Code(first + t)];
    if (!wide) {
      HEDDLE_UNROLL_BY(1)
      for (int e = 0; e < to.count; ++e) {
        const float y = sums.Get(to.row + e) * (FactorOf(p, to.r + e) * scale);
        const float up =
            gated ? sums.Get(to.up + e) * (FactorOf(p, to.r + p.half + e) * scale) : 0.0f;
        StoreOutput<BFloat16>(p, out, to.r + e, y, up);
      }
      continue;
    }
    Four value = sums.GetAs<Four>(to.row);
    Four up = gated ? sums.GetAs<Four>(to.up) : Four{};
    HEDDLE_UNROLL
    for (int e = 0; e < kWide; ++e) {
      value.item[e] *= factors.item[e];
      if (gated) up.item[e] *= up_factors.item[e];
      if constexpr (S::kScalesX) {
        value.item[e] *= scale;
        up.item[e] *= scale;
      }
    }
    FinishOutputs<kWide>(p, out, to.r, value, up);
    if (p.out_f32) {
      StoreFour<float>(p, out, to, value);
    } else {
      StoreFour<BFloat16>(p, out, to, value);
    }
  }
}

// Stores the block's outputs of a slice: fill(part) writes their sums to the shared memory of x.
template <typename S, typename Fill>
HEDDLE_DEVICE void StoreSlice(const LinearParams& p, const BlockPlace& place, const BlockRows& rows,
                              int slice, Fill fill) {
  SharedArena arena;
  const Shared<float> part = arena.Take<float>(kSliceFloats);
  NamedBarrierSync(kConsumersMeet, kConsumerThreads);  // the old content is free now
  fill(part);
  NamedBarrierSync(kConsumersMeet, kConsumerThreads);
  StorePart<S>(p, place, rows, slice, part);
}

// The offset of a thread's four sums of columns n and tile `tile` in memory, in floats from those
// of its part: neighbouring threads' sums are adjacent.
HEDDLE_DEVICE int PlaceOf(int n, int tile) {
  return ((n * kTiles + tile) * kConsumerThreads + ThreadX()) * 4;
}

// Stores the sums in memory, [parts, kXRows / 8, kTiles, threads, 4] for each tile, and lets
// arrived[slice] say whether this was the last of the tile's blocks to store that slice. Each block
// stores different slices last, so that each of several blocks that end together finds some to add
// up.
template <typename S>
HEDDLE_DEVICE void LeaveSums(const LinearParams& p, const BlockPlace& place, const BlockRows& rows,
                             const Sums<S>& sums, Shared<int32_t> arrived) {
  float* mine = p.partial +
                (static_cast<int64_t>(place.tile) * place.parts + place.part) * (S::kXRows * kRows);
  int32_t* counters = p.counters + place.tile * Slices<S>();
  for (int own = 0; own < 2; ++own) {
    HEDDLE_UNROLL
    for (int slice = 0; slice < Slices<S>(); ++slice) {
      if (slice >= rows.slices() || (slice % place.parts == place.part) != (own == 1)) continue;
      HEDDLE_UNROLL
      for (int n = slice * kSliceTiles; n < (slice + 1) * kSliceTiles && n < S::kXRows / 8; ++n) {
        HEDDLE_UNROLL
        for (int tile = 0; tile < kTiles; ++tile) {
          const float(&four)[4] = sums[tile][n];
          *reinterpret_cast<Vec16*>(mine + PlaceOf(n, tile)) = {
              {FloatToBits(four[0]), FloatToBits(four[1]), FloatToBits(four[2]),
               FloatToBits(four[3])}};
        }
      }
    }
    FenceDevice();
    NamedBarrierSync(kConsumersMeet, kConsumerThreads);
    const int slice = ThreadX();
    if (slice >= rows.slices() || (slice % place.parts == place.part) != (own == 1)) continue;
    const bool is_last = AtomicAddGlobal(counters + slice, 1) == place.parts - 1;
    if (is_last) counters[slice] = 0;  // for the next product
    arrived.Set(slice, is_last);
  }
  NamedBarrierSync(kConsumersMeet, kConsumerThreads);
  FenceDevice();
}

// Adds up the blocks' sums of a slice, in the order of their columns.
template <typename S>
HEDDLE_DEVICE void AddParts(const LinearParams& p, const BlockPlace& place, int slice,
                            Shared<float> part) {
  const float* from =
      p.partial + static_cast<int64_t>(place.tile) * place.parts * S::kXRows * kRows;
  float sums[kTiles][kSliceTiles][4] = {};
  HEDDLE_UNROLL_BY(2)
  for (int s = 0; s < place.parts; ++s) {
    HEDDLE_UNROLL
    for (int i = 0; i < kSliceTiles; ++i) {
      const int n = slice * kSliceTiles + i;
      if (n >= S::kXRows / 8) break;
      HEDDLE_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) {
        const Vec16 one = LoadFresh16(from + s * (S::kXRows * kRows) + PlaceOf(n, tile));
        HEDDLE_UNROLL
        for (int e = 0; e < 4; ++e) sums[tile][i][e] += BitsToFloat(one.word[e]);
      }
    }
  }
  ForSums<S::kUnit>(sums, 0,
                    [&](int row, int t, float sum) { part.Set(t * kSliceStride + row, sum); });
}

// Called by all consumers: the sums become outputs. arrived: [Slices<S>()].
template <typename S>
HEDDLE_DEVICE void Store(const LinearParams& p, const BlockPlace& place, const BlockRows& rows,
                         const Sums<S>& sums, Shared<int32_t> arrived) {
  if (place.parts == 1) {
    for (int slice = 0; slice < rows.slices(); ++slice) {
      StoreSlice<S>(p, place, rows, slice, [&](Shared<float> part) {
        ForSums<S::kUnit>(
            sums, slice, [&](int row, int t, float sum) { part.Set(t * kSliceStride + row, sum); });
      });
    }
    return;
  }
  LeaveSums<S>(p, place, rows, sums, arrived);
  for (int slice = 0; slice < rows.slices(); ++slice) {
    if (arrived.Get(slice) == 0) continue;
    StoreSlice<S>(p, place, rows, slice,
                  [&](Shared<float> part) { AddParts<S>(p, place, slice, part); });
  }
}

// Costs, in stages, for choosing the number of parts of the columns with which the last block ends
// first. `start`: starting a block; `shared`, `each`: adding up, and what each further part adds to
// it.
struct SplitCosts {
  int start, shared, each;
};
inline int SplitsOf(int tiles, int stages, int multiprocessors, int max_splits,
                    const SplitCosts& costs) {
  int best = 1, best_cost = CeilDiv(tiles, multiprocessors) * (stages + costs.start);
  for (int splits = 2; splits <= max_splits && splits <= stages; ++splits) {
    const int cost = CeilDiv(int64_t{tiles} * splits, multiprocessors) *
                     (CeilDiv(stages, splits) + costs.start + costs.shared + splits * costs.each);
    if (cost < best_cost) best = splits, best_cost = cost;
  }
  return best;
}

// The number of parts into which a dense product of `tiles` tiles and `stages` stages is cut, as
// far as counters and memory for the sums allow it and it pays.
template <typename S>
int PartsOf(const LinearParams& linear, int64_t tiles, int stages, int multiprocessors,
            const SplitCosts& costs) {
  constexpr int kMaxParts = 8;
  const int64_t room = tiles * Slices<S>() <= linear.n_counters
                           ? linear.partial_floats / (tiles * S::kXRows * kRows)
                           : 1;
  return SplitsOf(static_cast<int>(tiles), stages, multiprocessors,
                  room < kMaxParts ? static_cast<int>(room) : kMaxParts, costs);
}

}  // namespace sums
}  // namespace heddle::kernels::cuda
