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

// A block with codes decoded to F32: scales [kPanelRows], then columns [columns][kPanelRows].
template <BlockTraits kTraits>
class ExpandedFloats {
 public:
  static constexpr int kBytes = kIntRowBytes * (1 + kTraits.columns);
  static constexpr int kAheadLines = 0;

  explicit ExpandedFloats(const uint8_t* block) : block_(block) {}

  Vec Scale(int, int, int v) const { return LoadFloats(block_ + v * kLanes * 4); }
  Vec Column(int k, int v) const {
    return LoadFloats(block_ + (1 + k) * kIntRowBytes + v * kLanes * 4);
  }

 private:
  const uint8_t* block_;
};

// 8-bit and 4-bit floats.
template <BlockTraits kTraits>
struct FloatPanel {
  using Shape = PanelShape<kTraits>;
  using Packed = PackedBlock<kTraits>;
  using Expanded = ExpandedFloats<kTraits>;

  // Takes the place of sums where columns are only decoded.
  struct Writer {
    uint8_t* at;

    void Step(Vec w0, Vec w1, const float*) {
      std::memcpy(at, &w0, sizeof(w0));
      std::memcpy(at + kLanes * 4, &w1, sizeof(w1));
      at += kIntRowBytes;
    }
  };

  // The codes in bits kShift .. of each lane.
  template <int kShift>
  static Vec FloatValue(IntVec words, const FloatTable& table) {
    if constexpr (kTraits.values != CodeValues::kE4m3) {
      return LookupFloat<kShift>(table, words);
    } else {
      // Moves exponent and mantissa to their places in F32 and copies the sign down to the
      // exponent, where the mask leaves none of it; 2^120 adjusts the exponent's bias.
      const IntVec bits = ((words << (24 - kShift)) >> 4) & static_cast<int32_t>(0x87f00000);
      return FromBits(bits) * Set(0x1p120f);
    }
  }

  // Adds the columns from group kGroup on, of which each has kRows values of x.
  template <int kRows, int kGroup, typename Sums>
  [[gnu::always_inline]] static inline void Steps(const uint8_t* part, const FloatTable& table,
                                                  const float* x, Sums& total) {
    constexpr int kBits = kTraits.code_bits;
    const uint8_t* plane = part + Shape::kLowPlane + kGroup % kBits * kPanelRows * 4;
    // One by one: gcc copies both at once through integer registers, 8 bytes each, for whose stores
    // the loads of vectors wait.
    IntVec low, high;
    std::memcpy(&low, plane, sizeof(low));
    std::memcpy(&high, plane + sizeof(low), sizeof(high));
    auto step = [&]<int kColumn>() __attribute__((always_inline)) {
      constexpr int kShift = kBits * (kGroup / kBits) + 8 * kColumn;
      total.Step(FloatValue<kShift>(low, table), FloatValue<kShift>(high, table),
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

  template <int kRows>
  [[gnu::always_inline]] static inline void AddPart(const Packed&, const uint8_t* block, int part,
                                                    const FloatTable& table, const float* x,
                                                    Accumulators<kRows>& total) {
    Steps<kRows, 0>(block + Shape::kHeaderBytes + part * Shape::kPartBytes, table, x, total);
  }
  template <int kRows>
  [[gnu::always_inline]] static inline void AddPart(const Expanded& w, const uint8_t*, int part,
                                                    const FloatTable&, const float* x,
                                                    Accumulators<kRows>& total) {
    for (int k = part * kBlock; k < (part + 1) * kBlock; ++k, x += kRows) {
      total.Step(w.Column(k, 0), w.Column(k, 1), x);
    }
  }

  // Adds the products of one block to acc.
  template <int kRows, typename Block>
  static void MultiplyBlock(const uint8_t* block, const FloatTable& table, const float* x,
                            float* acc, Prefetches<Block::kAheadLines>& ahead) {
    const Block w(block);
    Accumulators<kRows> total;
    total.Clear();
    for (int part = 0; part < Shape::kParts; ++part, x += kBlock * kRows) {
      ahead.Next();
      AddPart<kRows>(w, block, part, table, x, total);
    }
    total.AddTimes(w.Scale(0, 0, 0), w.Scale(0, 0, 1), acc);
  }

  // `weights`: Blocks of cols columns.
  template <int kRows, typename Block = Packed>
  static void Multiply(const void* weights, const void* tile, int64_t cols, float* acc,
                       WeightsAhead weights_ahead) {
    const auto* w = static_cast<const uint8_t*>(weights);
    const auto* x = static_cast<const float*>(tile);
    const FloatTable table = LoadFloatTable(TableOf<kTraits>());
    Prefetches<Block::kAheadLines> ahead(weights_ahead, cols / kBlock);
    for (int64_t begin = 0; begin < cols; begin += kTraits.columns, w += Block::kBytes) {
      MultiplyBlock<kRows, Block>(w, table, x, acc, ahead);
      x += kTraits.columns * kRows;
    }
  }

  static int64_t ExpandedBytes(int64_t cols) { return cols / kTraits.columns * Expanded::kBytes; }
  static void Expand(const void* panel, int64_t cols, void* out) {
    const FloatTable table = LoadFloatTable(TableOf<kTraits>());
    const auto* from = static_cast<const uint8_t*>(panel);
    Writer writer{static_cast<uint8_t*>(out)};
    for (int64_t begin = 0; begin < cols; begin += kTraits.columns, from += Packed::kBytes) {
      const Packed w(from);
      writer.Step(w.Scale(0, 0, 0), w.Scale(0, 0, 1), nullptr);
      for (int part = 0; part < Shape::kParts; ++part) {
        Steps<0, 0>(from + Shape::kHeaderBytes + part * Shape::kPartBytes, table, nullptr, writer);
      }
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

// Decoding takes as long as 2 to 3 rows; packed blocks take 1.2 to 1.8 times as long as decoded
// ones with AVX2, up to 1.2 times with AVX-512. The portable level has no kernels for decoded
// blocks, as in MakeShared.
template <BlockFormat kFormat, int... kSizes>
constexpr FormatKernels MakeFloats(TileSizes<kSizes...> sizes) {
  using Panel = FloatPanel<kTraitsOf<kFormat>>;
  if constexpr (kLanes == 4) {
    return MakeBlocks<kFormat, Panel>(TileKind::kFloat, sizes);
  } else {
    return MakeExpandable<BlockLayout<kFormat>, Panel, typename Panel::Packed,
                          typename Panel::Expanded, kSizes...>(
        TileKind::kFloat, /*expand_tiles=*/kLanes == 8 ? 2 : 4);
  }
}

}  // namespace
}  // namespace heddle::kernels::cpu
