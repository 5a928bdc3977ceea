// Products with integer formats below 8 bits: the blocked ones, and Q4_0 where its table says so.
//
// Activations are quantised to int8 per block of 32 columns. The scales of a row's eight blocks in
// 256 columns, a group, are powers of two times one base, so that scaling a product needs no
// multiplication: the exponent of the activations' scale is added to the weights' F32 scale. Of Zen
// 5's four vector pipes, two have dot products and multiplications, and all have integer additions.
// The squared error of the activations is about twice that of a scale for each block, which is
// small beside that of weights with so few bits (docs/benchmarks/cpu.md has the divergence).
//
// For each group, in order of k: t = 0; per sub-block one Fma adds its exact int32 sum times the
// weights' scale * 2^exponent to t; an F32 offset adds offset * (sum of x * 2^exponent) likewise.
// Integer offsets are multiplied by int16 sums of x over the whole group, exactly, and added at its
// end. Then the result += t * base. PackedBlocks and ExpandedBlocks give the same bits.
//
// A weight scale of zero becomes 2^-111 at most, which is negligible beside any other.
// REQUIRES: block_parts.h included before.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/kernel_table.h"

namespace heddle::kernels::cpu {
namespace {

// One block of 32 columns of a tile of kRows rows of x.
template <int kRows>
struct SharedBlock {
  int8_t x[kRows][kBlock];
  int32_t exponent[kRows];  // in the position of F32's exponent; the block's scale is base *
                            // 2^exponent
  int32_t sum[kRows][2];    // of either half
  float scaled_sum[kRows];  // of both halves, times 2^exponent

  int32_t SumOf(int m) const { return sum[m][0] + sum[m][1]; }
};

// Sums of x are in units of 2^kSumExponent * base, so that the 4096 of a block at the largest
// exponent fill an int16. Exponents smaller by up to 3 stay exact, the rest is rounded.
constexpr int kSumExponent = SharedScales::kMaxExponent - 3;

// The header of a group, before its blocks.
template <int kRows>
struct SharedGroup {
  float base[kRows];
  int32_t block_sums[kGroupBlocks / 2][kRows];  // int16 sums of blocks 2 i and 2 i + 1
  int32_t half_sums[kGroupBlocks][kRows];       // int16 sums of either half of block i
};

// The layout of kInt8Shared.
struct SharedTile {
  using Scales = SharedScales;
  static constexpr int64_t kGroupRowBytes = sizeof(SharedGroup<1>);
  static constexpr int64_t kBlockRowBytes = sizeof(SharedBlock<1>);

  static int64_t Bytes(int32_t tile_rows, int64_t blocks) {
    const int64_t groups = (blocks + kGroupBlocks - 1) / kGroupBlocks;
    return tile_rows * (groups * kGroupRowBytes + blocks * kBlockRowBytes);
  }
  static void Put(char* tile, int32_t tile_rows, int32_t m, int64_t b, const RoundedBlocks& rounded,
                  int j) {
    const auto i = static_cast<int>(b % kGroupBlocks);
    char* group = tile + Bytes(tile_rows, b - i);
    if (i == 0) ClearGroup(group, tile_rows, m, rounded.scales[j]);
    const int32_t sums[2] = {rounded.sums[0][j], rounded.sums[1][j]};
    PutGroupSums(group, tile_rows, m, i, sums, rounded.exponents[j]);
    PutBlock(group + tile_rows * (kGroupRowBytes + i * kBlockRowBytes), tile_rows, m, rounded, j);
  }

 private:
  static void PutBlock(char* block, int32_t tile_rows, int32_t m, const RoundedBlocks& rounded,
                       int j) {
    const int32_t sums[2] = {rounded.sums[0][j], rounded.sums[1][j]};
    const float scaled = static_cast<float>(sums[0] + sums[1]) *
                         static_cast<float>(1 << (rounded.exponents[j] >> 23));
    char* exponents = block + tile_rows * kBlock;
    char* halves = exponents + tile_rows * 4;
    char* scaled_sums = halves + tile_rows * 8;
    std::memcpy(block + m * kBlock, rounded.codes[j], kBlock);
    std::memcpy(exponents + 4 * m, &rounded.exponents[j], 4);
    std::memcpy(halves + 8 * m, sums, 8);
    std::memcpy(scaled_sums + 4 * m, &scaled, 4);
  }
  // Clears row m of a group that has no blocks yet.
  static void ClearGroup(char* group, int32_t tile_rows, int32_t m, float base) {
    std::memcpy(group + 4 * m, &base, 4);
    for (int i = 1; i < static_cast<int>(kGroupRowBytes / 4); ++i) {
      std::memset(group + 4 * (i * tile_rows + m), 0, 4);
    }
  }
  static void PutGroupSums(char* group, int32_t tile_rows, int32_t m, int i, const int32_t* sums,
                           int32_t exponent_bits) {
    const int32_t down = kSumExponent - (exponent_bits >> 23);
    const int16_t whole = Rounded(sums[0] + sums[1], down);
    const int16_t halves[2] = {Rounded(sums[0], down), Rounded(sums[1], down)};
    char* block_sums = group + 4 * tile_rows;
    char* half_sums = block_sums + 4 * tile_rows * (kGroupBlocks / 2);
    std::memcpy(block_sums + 4 * (i / 2 * tile_rows + m) + 2 * (i % 2), &whole, 2);
    std::memcpy(half_sums + 4 * (i * tile_rows + m), halves, 4);
  }
  // sum / 2^down, rounded to nearest.
  static int16_t Rounded(int32_t sum, int32_t down) {
    sum = down <= 0 ? sum * (1 << -down) : (sum + (1 << (down - 1))) >> down;
    return static_cast<int16_t>(sum > INT16_MAX ? INT16_MAX : sum);
  }
};

template <BlockTraits kTraits>
struct SharedPanel : PanelExpansion<kTraits> {
  using Shape = PanelShape<kTraits>;

  // Adds the products of groups of four columns kGroup .. kEnd - 1 to `sums`. It must be inlined:
  // otherwise the sums of formats with much to decode are kept in memory (GCC 12), at half of the
  // speed.
  template <int kRows, int kGroup, int kEnd, typename Block>
  [[gnu::always_inline]] static inline void Steps(const Block& w, int part, ByteVec table,
                                                  const int8_t (*x)[kBlock],
                                                  IntSums (&sums)[kRows][2]) {
    const ByteVec w0 = w.template Codes<kGroup>(part, table, 0);
    const ByteVec w1 = w.template Codes<kGroup>(part, table, 1);
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      sums[m][0] = DotAdd<Block::kSigned>(sums[m][0], w0, x[m] + 4 * kGroup);
      sums[m][1] = DotAdd<Block::kSigned>(sums[m][1], w1, x[m] + 4 * kGroup);
    }
    if constexpr (kGroup + 1 < kEnd) Steps<kRows, kGroup + 1, kEnd>(w, part, table, x, sums);
  }

  template <int kRows, int kHalf>
  static int32_t SumOf(const SharedBlock<kRows>& x, int m) {
    return Shape::kSubs == 2 ? x.sum[m][kHalf] : x.SumOf(m);
  }

  // The codes' excess over the values, times the sum of x, is subtracted beforehand.
  template <int kRows, int kHalf, typename Block>
  [[gnu::always_inline]] static inline void Start(const Block& w, const SharedBlock<kRows>& x,
                                                  IntSums (&sums)[kRows][2]) {
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        if constexpr (Block::kHasZero) {
          sums[m][v] = AsIntSums(AsIntVec(w.Zero(v)) * -SumOf<kRows, kHalf>(x, m));
        } else {
          sums[m][v] = SetInts(-Block::kBias * SumOf<kRows, kHalf>(x, m));
        }
      }
    }
  }

  template <int kRows, int kHalf, typename Block>
  [[gnu::always_inline]] static inline void AddSub(const Block& w, int part, ByteVec table,
                                                   const SharedBlock<kRows>& x,
                                                   Accumulators<kRows>& total) {
    IntSums sums[kRows][2];
    Start<kRows, kHalf>(w, x, sums);
    constexpr int kCount = kGroupsOfFour / Shape::kSubs;
    Steps<kRows, kHalf * kCount, (kHalf + 1) * kCount>(w, part, table, x.x, sums);
    const IntVec w0 = Bits(w.Scale(part, kHalf, 0));
    const IntVec w1 = Bits(w.Scale(part, kHalf, 1));
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const IntVec exponent = IntVec{} + x.exponent[m];
      const Vec s0 = FromBits(WrappingAdd(w0, exponent));
      const Vec s1 = FromBits(WrappingAdd(w1, exponent));
      total.sums[m][0] = Fma(ToFloat(sums[m][0]), s0, total.sums[m][0]);
      total.sums[m][1] = Fma(ToFloat(sums[m][1]), s1, total.sums[m][1]);
    }
  }

  template <int kRows, typename Block>
  [[gnu::always_inline]] static inline void AddFloatOffsets(const Block& w,
                                                            const SharedBlock<kRows>& x,
                                                            Accumulators<kRows>& total) {
    const Vec offset[2] = {w.Offset(0), w.Offset(1)};
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const Vec sum = Set(x.scaled_sum[m]);
      total.sums[m][0] = Fma(offset[0], sum, total.sums[m][0]);
      total.sums[m][1] = Fma(offset[1], sum, total.sums[m][1]);
    }
  }

  // Adds a whole group, which is one block.
  template <int kRows, typename Block>
  [[gnu::always_inline]] static inline void AddIntOffsets(const Block& w,
                                                          const SharedGroup<kRows>& x,
                                                          Accumulators<kRows>& total) {
    IntSums sums[kRows][2];
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) sums[m][0] = sums[m][1] = SetInts(0);
#pragma GCC unroll 8
    for (int i = 0; i < Shape::kOffsetPairs; ++i) {
      const IntSums w0 = w.OffsetPair(i, 0);
      const IntSums w1 = w.OffsetPair(i, 1);
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) {
        const int32_t pair = Shape::kSubs == 2 ? x.half_sums[i][m] : x.block_sums[i][m];
        sums[m][0] = DotAdd16(sums[m][0], w0, pair);
        sums[m][1] = DotAdd16(sums[m][1], w1, pair);
      }
    }
    const Vec unit = Set(static_cast<float>(1 << kSumExponent));
    const Vec offset[2] = {w.Offset(0) * unit, w.Offset(1) * unit};
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      total.sums[m][0] = Fma(ToFloat(sums[m][0]), offset[0], total.sums[m][0]);
      total.sums[m][1] = Fma(ToFloat(sums[m][1]), offset[1], total.sums[m][1]);
    }
  }

  // Adds the products of one group of `parts` parts to acc.
  template <int kRows, typename Block>
  static void MultiplyGroup(const uint8_t* weights, const SharedGroup<kRows>& group, int parts,
                            float* acc, Prefetches<Block::kAheadLines>& prefetches) {
    Prefetches<Block::kAheadLines> ahead = prefetches;  // in registers
    const auto* x = reinterpret_cast<const SharedBlock<kRows>*>(&group + 1);
    const ByteVec table = Shape::Table();
    Accumulators<kRows> total;
    total.Clear();
    for (int begin = 0; begin < parts; begin += Shape::kParts, weights += Block::kBytes) {
      const Block w(weights);
      for (int part = 0; part < Shape::kParts; ++part, ++x) {
        ahead.Next();
        AddSub<kRows, 0>(w, part, table, *x, total);
        if constexpr (Shape::kSubs == 2) AddSub<kRows, 1>(w, part, table, *x, total);
        if constexpr (Shape::kFloatOffsets) AddFloatOffsets(w, *x, total);
      }
      if constexpr (Shape::kIntOffsets) AddIntOffsets(w, group, total);
    }
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      for (int v = 0; v < 2; ++v) {
        float* at = acc + m * kPanelRows + v * kLanes;
        Store(at, Fma(total.sums[m][v], Set(group.base[m]), Load(at)));
      }
    }
    prefetches = ahead;
  }

  // `weights`: Blocks of cols columns.
  template <int kRows, typename Block>
  static void Multiply(const void* weights, const void* tile, int64_t cols, float* acc,
                       WeightsAhead weights_ahead) {
    const auto* w = static_cast<const uint8_t*>(weights);
    const auto* x = static_cast<const char*>(tile);
    Prefetches<Block::kAheadLines> ahead(weights_ahead, cols / kBlock);
    for (int64_t left = cols / kBlock; left > 0; left -= kGroupBlocks) {
      const auto parts = static_cast<int>(left < kGroupBlocks ? left : kGroupBlocks);
      const auto& group = *reinterpret_cast<const SharedGroup<kRows>*>(x);
      MultiplyGroup<kRows, Block>(w, group, parts, acc, ahead);
      w += parts / Shape::kParts * Block::kBytes;
      x += SharedTile::Bytes(kRows, parts);
    }
  }

  // Expanding takes a third of the time of a tile of 6 rows. It saves a fifth to a quarter of a
  // tile if codes are in two planes, and a twentieth if a shift and a mask make them (AVX-512).
  static constexpr int32_t kExpandTiles = Shape::kHighBits > 0 || Shape::kLowBits < 4 ? 2 : 8;
};

// The portable level, with vectors of 16 bytes, reads only packed blocks: kernels for expanded ones
// would take two fifths of that level's compile time, for the speed of machines without AVX2.
template <BlockTraits kTraits, typename Layout, int... kSizes>
constexpr FormatKernels MakeShared() {
  using Panel = SharedPanel<kTraits>;
  using Packed = PackedBlock<kTraits>;
  if constexpr (kLanes == 4) {
    return {TileKind::kInt8Shared,
            Layout::Bytes,
            Layout::Pack,
            Layout::Unpack,
            {Panel::template Multiply<kSizes, Packed>...}};
  } else {
    return MakeExpandable<Layout, Panel, Packed, ExpandedBlock<kTraits>, kSizes...>(
        TileKind::kInt8Shared, Panel::kExpandTiles);
  }
}

}  // namespace
}  // namespace heddle::kernels::cpu
