// A row of logits in pieces of 512 tokens, each taken by one warp, and what is known of each.
//
// A piece's summary is its largest logit and the sum of its tokens' weights relative to that one,
// so that a row is read once: neither needs what other pieces hold. Summaries are merged as those
// of split attention are, exp(max - row's max) times the sum. A piece is the same 512 tokens and
// its sum is added in the same order whichever block takes it, and what is merged is integers: so
// the same row gives the same token in any batch and with any number of blocks.
//
// Lane l of a warp holds elements [i] of a piece with i / 4 its load and i % 4 the place in it:
// token (i / 4) * 128 + 4 * l + i % 4 of the piece. A load is 16 bytes a lane, 512 a warp, and all
// four are on their way at once.
#pragma once

#include "kernels/cuda/primitives/group.cuh"
#include "kernels/cuda/primitives/primitives.cuh"
#include "kernels/cuda/sample/sample_params.h"

namespace heddle::kernels::cuda::sample {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kUnit = 4;  // tokens that a lane loads at once
constexpr int kLoads = kSamplePieceTokens / (32 * kUnit);
constexpr int kPerLane = kLoads * kUnit;
constexpr int kBins = 256;
constexpr int kListed = 4096;             // tokens that shared memory keeps for a filter
constexpr float kOne = 1099511627776.0f;  // 2^40; a row of 2^23 tokens still fits 64 bits
constexpr float kLog2E = 1.4426950408889634f;

using Mass = unsigned long long;  // in units of 1 / kOne

struct Memory {
  Shared<Mass> warps;           // [2 * kWarps] for scans and broadcasts
  Shared<uint32_t> bins;        // [kBins] low words
  Shared<uint32_t> bins_above;  // [kBins] high words
  Shared<float> list;           // [kListed]
  Shared<int32_t> count;        // [1]
  HEDDLE_DEVICE explicit Memory(SharedArena arena)
      : warps(arena.Take<Mass>(2 * kWarps)),
        bins(arena.Take<uint32_t>(kBins)),
        bins_above(arena.Take<uint32_t>(kBins)),
        list(arena.Take<float>(kListed)),
        count(arena.Take<int32_t>(1)) {}
};

constexpr int kSharedBytes = SharedBytesFor<Mass>(2 * kWarps) +
                             2 * SharedBytesFor<uint32_t>(kBins) + SharedBytesFor<float>(kListed) +
                             SharedBytesFor<int32_t>(1);

// Unsigned integers that order as the floats do. No float has key 0.
HEDDLE_DEVICE uint32_t KeyOf(float x) {
  uint32_t bits = FloatToBits(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
HEDDLE_DEVICE float ValueOf(uint32_t key) {
  return BitsToFloat(key & 0x80000000u ? key ^ 0x80000000u : ~key);
}

// NaN counts as -infinity; -0 becomes 0, since they tie.
HEDDLE_DEVICE float Clean(float x) { return Max(x, -Infinity()) + 0.0f; }

// Probability relative to the token of logit `max`.
struct Weigh {
  float max;
  float scale;  // log2(e) / temperature
  HEDDLE_DEVICE float operator()(float x) const {
    return x == max ? 1.0f : Exp2((x - max) * scale);
  }
  HEDDLE_DEVICE Mass MassOf(float x) const { return static_cast<Mass>((*this)(x)*kOne); }
};

// A row of logits as a draw sees it.
struct RowView {
  const float* values;      // [vocab], any alignment
  const uint32_t* allowed;  // [ceil(vocab / 32)] bits, or nullptr: all
  int vocab;
  HEDDLE_DEVICE int pieces() const { return (vocab + kSamplePieceTokens - 1) / kSamplePieceTokens; }
};

// A lane's share of a piece; cleaned, -infinity where a token is banned or past the end.
struct Elements {
  float x[kPerLane];
};

HEDDLE_DEVICE int IdOf(int piece, int i) {
  return piece * kSamplePieceTokens + i / kUnit * (32 * kUnit) + Lane() * kUnit + i % kUnit;
}

HEDDLE_DEVICE Elements LoadPiece(const RowView& row, int piece) {
  Elements e;
  const bool aligned = reinterpret_cast<uint64_t>(row.values) % 16 == 0;
  if (aligned && (piece + 1) * kSamplePieceTokens <= row.vocab) {
    Group<float, kUnit> loads[kLoads];
    HEDDLE_UNROLL
    for (int j = 0; j < kLoads; ++j) {
      loads[j] = LoadGroup<kUnit>(row.values + IdOf(piece, j * kUnit));
    }
    HEDDLE_UNROLL
    for (int i = 0; i < kPerLane; ++i) e.x[i] = Clean(loads[i / kUnit].item[i % kUnit]);
  } else {
    HEDDLE_UNROLL
    for (int i = 0; i < kPerLane; ++i) {
      const int id = IdOf(piece, i);
      e.x[i] = id < row.vocab ? Clean(row.values[id]) : -Infinity();
    }
  }
  if (row.allowed != nullptr) {
    HEDDLE_UNROLL
    for (int j = 0; j < kLoads; ++j) {
      const int id = IdOf(piece, j * kUnit);
      const uint32_t bits = id < row.vocab ? row.allowed[id / 32] >> (id % 32) : 0;
      HEDDLE_UNROLL
      for (int u = 0; u < kUnit; ++u) {
        if ((bits >> u & 1u) == 0) e.x[j * kUnit + u] = -Infinity();
      }
    }
  }
  return e;
}

// Writes a piece of [vocab] values, whose address is a multiple of 16 bytes.
HEDDLE_DEVICE void StorePiece(const Elements& e, int piece, int vocab, float* to) {
  const bool whole = (piece + 1) * kSamplePieceTokens <= vocab;
  HEDDLE_UNROLL
  for (int j = 0; j < kLoads; ++j) {
    const int id = IdOf(piece, j * kUnit);
    if (whole) {
      StoreGroup(to + id, Group<float, kUnit>{{e.x[j * kUnit], e.x[j * kUnit + 1],
                                               e.x[j * kUnit + 2], e.x[j * kUnit + 3]}});
      continue;
    }
    HEDDLE_UNROLL
    for (int u = 0; u < kUnit; ++u) {
      if (id + u < vocab) to[id + u] = e.x[j * kUnit + u];
    }
  }
}

// The summary of a piece by its warp. `sums`: also the sum of weights at `scale`.
HEDDLE_DEVICE SamplePiece Summarise(const RowView& row, int piece, float scale, bool sums) {
  const Elements e = LoadPiece(row, piece);
  float max = e.x[0];
  HEDDLE_UNROLL
  for (int i = 1; i < kPerLane; ++i) max = Max(max, e.x[i]);
  max = ValueOf(WarpMaximum(KeyOf(max)));
  uint32_t id = 0xFFFFFFFFu;
  HEDDLE_UNROLL
  for (int i = kPerLane - 1; i >= 0; --i) {
    if (e.x[i] == max) id = static_cast<uint32_t>(IdOf(piece, i));
  }
  float sum = 0;
  if (sums) {
    const Weigh weigh = {max, scale};
    HEDDLE_UNROLL
    for (int i = 0; i < kPerLane; ++i) sum += weigh(e.x[i]);
    sum = WarpSum(sum);
    if (max == -Infinity()) {  // places past the row's end weigh nothing
      const int left = row.vocab - piece * kSamplePieceTokens;
      sum = static_cast<float>(left < kSamplePieceTokens ? left : kSamplePieceTokens);
    }
  }
  return {max, static_cast<int32_t>(WarpMinimum(id)), sum, 0};
}

// Summarises pieces [begin, end); by all warps of the block.
HEDDLE_DEVICE void SummariseAll(const RowView& row, int begin, int end, float scale, bool sums,
                                SamplePiece* pieces) {
  for (int piece = begin + WarpIndex(); piece < end; piece += kWarps) {
    const SamplePiece summary = Summarise(row, piece, scale, sums);
    if (Lane() == 0) pieces[piece] = summary;
  }
}

// Exclusive sums over the threads in order; the total to everybody.
struct Scan {
  Mass before;
  Mass total;
};
template <typename T>
HEDDLE_DEVICE T WarpScan(T inclusive) {
  for (int delta = 1; delta < 32; delta <<= 1) {
    const T other = ShuffleUp(inclusive, delta);
    if (Lane() >= delta) inclusive += other;
  }
  return inclusive;
}
HEDDLE_DEVICE Scan BlockScan(Mass mine, const Memory& memory) {
  const Mass inclusive = WarpScan(mine);
  if (Lane() == 31) memory.warps.Set(WarpIndex(), inclusive);
  SyncThreads();
  Mass before = inclusive - mine, total = 0;
  HEDDLE_UNROLL
  for (int w = 0; w < kWarps; ++w) {
    Mass sum = memory.warps.Get(w);
    if (w < WarpIndex()) before += sum;
    total += sum;
  }
  SyncThreads();
  return {before, total};
}

// Larger value first, lower id first among equals; id < 0 is nothing.
struct Ranked {
  float value;
  int id;
  HEDDLE_DEVICE bool Before(const Ranked& other) const {
    if (id < 0 || other.id < 0) return other.id < 0 && id >= 0;
    return value > other.value || (value == other.value && id < other.id);
  }
};
HEDDLE_DEVICE Ranked WarpBest(Ranked best) {
  for (int mask = 16; mask > 0; mask >>= 1) {
    const Ranked other = {ShuffleXor(best.value, mask), ShuffleXor(best.id, mask)};
    if (other.Before(best)) best = other;
  }
  return best;
}

// The best token of all pieces, to every thread.
HEDDLE_DEVICE Ranked BestOf(const SamplePiece* pieces, int count, const Memory& memory) {
  Ranked best = {-Infinity(), -1};
  for (int i = ThreadX(); i < count; i += kThreads) {
    const Ranked other = {pieces[i].max, pieces[i].id};
    if (other.Before(best)) best = other;
  }
  best = WarpBest(best);
  if (Lane() == 0) {
    memory.warps.Set(WarpIndex(), static_cast<Mass>(FloatToBits(best.value)) << 32 |
                                      static_cast<uint32_t>(best.id));
  }
  SyncThreads();
  HEDDLE_UNROLL
  for (int w = 0; w < kWarps; ++w) {
    const Mass packed = memory.warps.Get(w);
    const Ranked other = {BitsToFloat(static_cast<uint32_t>(packed >> 32)),
                          static_cast<int>(static_cast<uint32_t>(packed))};
    if (other.Before(best)) best = other;
  }
  SyncThreads();
  return best;
}

// The piece's sum relative to the whole row's maximum, weigh.max.
HEDDLE_DEVICE Mass MassOf(const SamplePiece& piece, const Weigh& weigh) {
  return static_cast<Mass>(static_cast<double>(piece.sum) *
                           static_cast<double>(weigh(piece.max) * kOne));
}

// The neighbouring pieces [begin, end) that are this thread's in a scan over pieces.
struct Run {
  int begin;
  int end;
  HEDDLE_DEVICE explicit Run(int count) {
    const int each = (count + kThreads - 1) / kThreads;
    begin = ThreadX() * each < count ? ThreadX() * each : count;
    end = begin + each < count ? begin + each : count;
  }
};

HEDDLE_DEVICE Scan ScanMasses(const SamplePiece* pieces, int count, const Weigh& weigh,
                              const Memory& memory) {
  const Run run(count);
  Mass mine = 0;
  for (int i = run.begin; i < run.end; ++i) mine += MassOf(pieces[i], weigh);
  return BlockScan(mine, memory);
}

}  // namespace heddle::kernels::cuda::sample
