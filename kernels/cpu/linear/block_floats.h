// Blocked formats whose codes are floats (E4M3, NF4, FP4), and what the tables of kernels of all
// blocked formats are made from.
//
// For each block of a float format, in order of k: t = 0; codes are decoded to F32, and one Fma for
// each adds its product with an F32 activation to t; then the F32 result += t * scale of w.
// REQUIRES: what block_parts.h requires, and defined:
//   FloatTable, LoadFloatTable(16 floats), LookupFloat<n>(table, w)   by the bits n .. n + 3
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/linear/block_parts.h"

namespace heddle::kernels::cpu {
namespace {

// The numbers of 4-bit codes.
template <BlockTraits kTraits>
constexpr const float* TableOf() {
  return kTraits.values == CodeValues::kFp4 ? kFp4Values : kNf4Values;
}

// 8-bit and 4-bit floats.
template <BlockTraits kTraits>
struct FloatPanel {
  using Shape = PanelShape<kTraits>;
  using Block = PackedBlock<kTraits>;

  // The codes in bits kShift .. of each lane.
  template <int kShift>
  static Vec FloatValue(IntVec words, const FloatTable& table) {
    if constexpr (kTraits.values != CodeValues::kE4m3) {
      return LookupFloat<kShift>(table, words);
    } else {
      // Moves sign, exponent and mantissa to their places in F32; 2^120 adjusts the exponent's
      // bias.
      IntVec top = words << (24 - kShift);
      IntVec bits = (top & INT32_MIN) | ((top >> 4) & 0x07f00000);
      return FromBits(bits) * Set(0x1p120f);
    }
  }

  template <int kRows, int kGroup>
  [[gnu::always_inline]] static inline void Steps(const uint8_t* part, const FloatTable& table,
                                                  const float* x, Accumulators<kRows>& total) {
    constexpr int kBits = kTraits.code_bits;
    IntVec words[2];
    const uint8_t* plane = part + Shape::kLowPlane + kGroup % kBits * kPanelRows * 4;
    std::memcpy(words, plane, sizeof(words));
    auto step = [&]<int kColumn>() __attribute__((always_inline)) {
      constexpr int kShift = kBits * (kGroup / kBits) + 8 * kColumn;
      total.Step(FloatValue<kShift>(words[0], table), FloatValue<kShift>(words[1], table),
                 x + kColumn * kRows);
    };
    step.template operator()<0>();
    step.template operator()<1>();
    step.template operator()<2>();
    step.template operator()<3>();
    if constexpr (kGroup + 1 < kGroupsOfFour) {
      Steps<kRows, kGroup + 1>(part, table, x + 4 * kRows, total);
    }
  }

  // Adds the products of one block to acc.
  template <int kRows>
  static void MultiplyBlock(const uint8_t* p, const FloatTable& table, const float* x, float* acc,
                            Prefetches<Block::kAheadLines>& ahead) {
    const Block block(p);
    p += Shape::kHeaderBytes;
    Accumulators<kRows> total;
    total.Clear();
    for (int part = 0; part < Shape::kParts; ++part, p += Shape::kPartBytes, x += kBlock * kRows) {
      ahead.Next();
      Steps<kRows, 0>(p, table, x, total);
    }
    total.AddTimes(block.Scale(0, 0, 0), block.Scale(0, 0, 1), acc);
  }

  template <int kRows>
  static void Multiply(const void* panel, const void* tile, int64_t cols, float* acc,
                       WeightsAhead weights_ahead) {
    const auto* p = static_cast<const uint8_t*>(panel);
    const auto* x = static_cast<const float*>(tile);
    const FloatTable table = LoadFloatTable(TableOf<kTraits>());
    Prefetches<Block::kAheadLines> ahead(weights_ahead, cols / kBlock);
    for (int64_t begin = 0; begin < cols; begin += kTraits.columns, p += Block::kBytes) {
      MultiplyBlock<kRows>(p, table, x, acc, ahead);
      x += kTraits.columns * kRows;
    }
  }
};

// Panels of a format at this level.
template <BlockFormat kFormat>
struct BlockLayout {
  static int64_t Bytes(int64_t cols) { return BlockPanelBytes(kFormat, kPanelRows, cols); }
  static void Pack(const void* source, int64_t row_bytes, int32_t rows, int64_t cols, void* panel) {
    PackBlockPanel(kFormat, kPanelRows, source, row_bytes, rows, cols, panel);
  }
  static void Unpack(const void* panel, int32_t row, int64_t cols, float* out) {
    UnpackBlockPanel(kFormat, kPanelRows, panel, row, cols, out);
  }
};

template <int... kSizes>
struct TileSizes {};

template <BlockFormat kFormat>
constexpr BlockTraits kTraitsOf = kBlockTraits[static_cast<int32_t>(kFormat)];

template <BlockFormat kFormat, typename Panel, int... kSizes>
constexpr FormatKernels MakeBlocks(TileKind tile, TileSizes<kSizes...>) {
  using Layout = BlockLayout<kFormat>;
  return {tile, Layout::Bytes, Layout::Pack, Layout::Unpack, {Panel::template Multiply<kSizes>...}};
}

template <BlockFormat kFormat, typename Sizes>
constexpr FormatKernels MakeFloats(Sizes sizes) {
  return MakeBlocks<kFormat, FloatPanel<kTraitsOf<kFormat>>>(TileKind::kFloat, sizes);
}

}  // namespace
}  // namespace heddle::kernels::cpu
