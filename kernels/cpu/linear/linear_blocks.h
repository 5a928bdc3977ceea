// Products with panels of the blocked formats (block_panels.h has their layout), and the tables of
// kernels for all of them.
//
// Integer values below 8 bits: linear_shared.h. Float values: block_floats.h. Integer values of 8
// bits: activations are quantised to int8 per 32 columns, and products of codes are summed exactly
// in int32. For each block of the format, in order of k: t = 0; one Fma for each such sum adds it
// times the scale of x to t; then the F32 result += t * scale of w.
// REQUIRES: what block_floats.h requires, and DotAdd and DotAdd16 (block_parts.h).
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/linear/block_floats.h"
#include "kernels/cpu/linear/block_parts.h"
#include "kernels/cpu/linear/linear_shared.h"

namespace heddle::kernels::cpu {
namespace {

// Signed bytes with a scale and a zero point for a block.
template <BlockTraits kTraits>
struct BytePanel {
  using Shape = PanelShape<kTraits>;
  using Block = PackedBlock<kTraits>;

  template <int kRows, int kGroup>
  [[gnu::always_inline]] static inline void Steps(const Block& w, int part,
                                                  const int8_t (*x)[kBlock],
                                                  IntSums (&sums)[kRows][2]) {
    const ByteVec w0 = w.template Codes<kGroup>(part, ByteVec{}, 0);
    const ByteVec w1 = w.template Codes<kGroup>(part, ByteVec{}, 1);
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      sums[m][0] = DotAdd<true>(sums[m][0], w0, x[m] + 4 * kGroup);
      sums[m][1] = DotAdd<true>(sums[m][1], w1, x[m] + 4 * kGroup);
    }
    if constexpr (kGroup + 1 < kGroupsOfFour) Steps<kRows, kGroup + 1>(w, part, x, sums);
  }

  // The bias and zero point, times the sum of x, are subtracted beforehand.
  template <int kRows>
  [[gnu::always_inline]] static inline void Start(const Block& w, const TileBlock<kRows>& x,
                                                  IntSums (&sums)[kRows][2]) {
    if (w.IsSymmetric()) {
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) {
        sums[m][0] = sums[m][1] = SetInts(kTableBias == 0 ? 0 : x.sum128[m]);
      }
      return;
    }
    const IntVec excess[2] = {AsIntVec(w.Zero(0)) + kTableBias, AsIntVec(w.Zero(1)) + kTableBias};
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const int32_t negative_sum = x.sum128[m] / 128;
      sums[m][0] = AsIntSums(excess[0] * negative_sum);
      sums[m][1] = AsIntSums(excess[1] * negative_sum);
    }
  }

  // Adds the products of one block to acc.
  template <int kRows>
  static void MultiplyBlock(const uint8_t* block, const TileBlock<kRows>* x, float* acc,
                            Prefetches<Block::kAheadLines>& ahead) {
    const Block w(block);
    Accumulators<kRows> total;
    total.Clear();
    for (int part = 0; part < Shape::kParts; ++part, ++x) {
      ahead.Next();
      IntSums sums[kRows][2];
      Start(w, *x, sums);
      Steps<kRows, 0>(w, part, x->x, sums);
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) {
        const Vec scale = Set(x->scale[m]);
        total.sums[m][0] = Fma(ToFloat(sums[m][0]), scale, total.sums[m][0]);
        total.sums[m][1] = Fma(ToFloat(sums[m][1]), scale, total.sums[m][1]);
      }
    }
    total.AddTimes(w.Scale(0, 0, 0), w.Scale(0, 0, 1), acc);
  }

  template <int kRows>
  static void Multiply(const void* panel, const void* tile, int64_t cols, float* acc,
                       WeightsAhead weights_ahead) {
    const auto* p = static_cast<const uint8_t*>(panel);
    const auto* x = static_cast<const TileBlock<kRows>*>(tile);
    Prefetches<Block::kAheadLines> ahead(weights_ahead, cols / kBlock);
    for (int64_t begin = 0; begin < cols; begin += kTraits.columns, p += Block::kBytes) {
      MultiplyBlock<kRows>(p, x, acc, ahead);
      x += Shape::kParts;
    }
  }
};

template <BlockFormat kFormat, int... kSizes>
constexpr FormatKernels MakeSharedBlocks(TileSizes<kSizes...>) {
  return MakeShared<kTraitsOf<kFormat>, BlockLayout<kFormat>, kSizes...>();
}

template <BlockFormat kFormat, typename Sizes>
constexpr FormatKernels MakeBytes(Sizes sizes) {
  return MakeBlocks<kFormat, BytePanel<kTraitsOf<kFormat>>>(TileKind::kInt8, sizes);
}

template <int... kSizes>
constexpr TileKernels MakeSharedTiles(TileSizes<kSizes...>, ManyRows many) {
  return {sizeof...(kSizes), {kSizes...}, PrepareRoundedTile<SharedTile>, many};
}

// In the order of BlockFormat. `bytes` and `floats` must be the sizes of the level's kInt8 and
// kFloat tiles. `many` is that of TileKernels, for kInt8Shared.
template <typename Shared, typename Bytes, typename Floats>
constexpr BlockKernels MakeBlockKernels(Shared shared, Bytes bytes, Floats floats,
                                        ManyRows many = {}) {
  return {MakeSharedTiles(shared, many), {MakeSharedBlocks<BlockFormat::kQ4_1>(shared),
                                          MakeSharedBlocks<BlockFormat::kQ5_0>(shared),
                                          MakeSharedBlocks<BlockFormat::kQ5_1>(shared),
                                          MakeSharedBlocks<BlockFormat::kQ2_K>(shared),
                                          MakeSharedBlocks<BlockFormat::kQ3_K>(shared),
                                          MakeSharedBlocks<BlockFormat::kQ4_K>(shared),
                                          MakeSharedBlocks<BlockFormat::kQ5_K>(shared),
                                          MakeSharedBlocks<BlockFormat::kQ6_K>(shared),
                                          MakeSharedBlocks<BlockFormat::kIQ4_NL>(shared),
                                          MakeSharedBlocks<BlockFormat::kIQ4_XS>(shared),
                                          MakeSharedBlocks<BlockFormat::kMXFP4>(shared),
                                          MakeSharedBlocks<BlockFormat::kInt4G32>(shared),
                                          MakeSharedBlocks<BlockFormat::kInt4G64>(shared),
                                          MakeSharedBlocks<BlockFormat::kInt4G128>(shared),
                                          MakeBytes<BlockFormat::kInt8G32>(bytes),
                                          MakeBytes<BlockFormat::kInt8G128>(bytes),
                                          MakeFloats<BlockFormat::kF8G32>(floats),
                                          MakeFloats<BlockFormat::kF8G128>(floats),
                                          MakeFloats<BlockFormat::kNF4>(floats),
                                          MakeSharedBlocks<BlockFormat::kTQ2_0>(shared),
                                          MakeSharedBlocks<BlockFormat::kNVFP4>(shared),
                                          MakeFloats<BlockFormat::kFP4>(floats),
                                          MakeSharedBlocks<BlockFormat::kIQ1>(shared),
                                          MakeSharedBlocks<BlockFormat::kIQ2>(shared),
                                          MakeSharedBlocks<BlockFormat::kIQ3XXS>(shared),
                                          MakeSharedBlocks<BlockFormat::kIQ3S>(shared)}};
}

}  // namespace
}  // namespace heddle::kernels::cpu
