// Products with weights of signed bytes for processors without VNNI.
//
// One instruction multiplies unsigned bytes with int8 activations and adds neighbours to 16
// bits. A weight plus 128 is such a byte, but two products of any int8 do not fit 16 bits. So the
// scales of activations are chosen such that they do, and that the true sums of four products do
// (pairs_tile.h): then two instructions' results are added in 16 bits, from -128 times the sum
// of the activations, wrapping around on the way, before they are widened to 32.
//
// For each block of 32 columns, or sub-block of 16 with a scale of its own, in order of k: one Fma
// adds the exact sum times (scale of w * scale of x). Packed and expanded panels give the same
// bits, and so do all numbers of rows: the codes of a vector of outputs stay in 8 registers while
// the rows of x pass, each from its sums' start to the result. REQUIRES: int16_*.h and pairs_tile.h
// included before.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#include "kernels/cpu/kernel_table.h"

namespace heddle::kernels::cpu {
namespace {

// A block of Q8_0's panels, BlockPanel<Q80<0x80>>.
class Q80Codes {
 public:
  static constexpr int kBytes = BlockPanel<Q80<0x80>>::kBytes;
  static constexpr int kAheadLines = LinesOf(kBytes);

  explicit Q80Codes(const uint8_t* block) : block_(block) {}
  Vec Scale(int, int, int v) const {
    return FromF16(reinterpret_cast<const uint16_t*>(block_) + v * kLanes);
  }
  template <int kGroup>
  ByteVec Codes(int, ByteVec, int v) const {
    return LoadBytes(block_ + kPanelRows * 2 + (kGroup * kPanelRows + v * kLanes) * 4);
  }

 private:
  const uint8_t* block_;
};

template <BlockTraits kTraits>
struct PairsPanel : PanelExpansion<kTraits> {
  using Shape = PanelShape<kTraits>;

  // The products of `codes` with columns [4 group, 4 group + 4) of x, neighbours added.
  static IntSums Products(ByteVec codes, const PairsRow& x, int group) {
    int32_t word;
    std::memcpy(&word, x.x + 4 * group, 4);
    return MultiplyBytes(codes, SetInts(word));
  }

  // The exact sums of products of a sub-block, for biased codes.
  template <int kSub>
  [[gnu::always_inline]] static inline IntSums SumOf(const ByteVec (&codes)[kGroupsOfFour],
                                                     const PairsRow& x) {
    constexpr int kCount = kGroupsOfFour / 2 / Shape::kSubs;
    IntSums wide = {};
#pragma GCC unroll 4
    for (int i = kSub * kCount; i < (kSub + 1) * kCount; ++i) {
      IntSums sum = SetInts(x.corrections[i]);
      sum = AddHalves(sum, Products(codes[2 * i], x, 2 * i));
      sum = AddHalves(sum, Products(codes[2 * i + 1], x, 2 * i + 1));
      const IntSums widened = MultiplyPairs(sum, SetInts(0x10001));
      wide = i == kSub * kCount ? widened : AddInts(wide, widened);
    }
    return wide;
  }

  template <int kSub>
  [[gnu::always_inline]] static inline Vec AddSub(const ByteVec (&codes)[kGroupsOfFour], Vec scale,
                                                  IntSums zero, const PairsRow& x, Vec total) {
    IntSums sum = SumOf<kSub>(codes, x);
    if constexpr (kTraits.has_zero) {
      static_assert(Shape::kSubs == 1);
      sum = AsIntSums(AsIntVec(sum) - AsIntVec(zero) * x.sum);
    }
    return Fma(ToFloat(sum), scale * Set(x.scale), total);
  }

  // Adds the products of 32 columns and the outputs of vector v to acc [kRows][kPanelRows].
  template <int kRows, typename Block>
  [[gnu::always_inline]] static inline void AddPart(const Block& w, int part, int v, ByteVec table,
                                                    const PairsRow* x, float* acc) {
    ByteVec codes[kGroupsOfFour];
    [&]<int... kGroups>(std::integer_sequence<int, kGroups...>) {
      ((codes[kGroups] = w.template Codes<kGroups>(part, table, v)), ...);
    }
    (std::make_integer_sequence<int, kGroupsOfFour>());
    Vec scales[Shape::kSubs];
#pragma GCC unroll 2
    for (int h = 0; h < Shape::kSubs; ++h) scales[h] = w.Scale(part, h, v);
    IntSums zero = {};
    if constexpr (kTraits.has_zero) zero = w.Zero(v);
    for (int m = 0; m < kRows; ++m) {
      float* at = acc + m * kPanelRows + v * kLanes;
      Vec total = AddSub<0>(codes, scales[0], zero, x[m], Load(at));
      if constexpr (Shape::kSubs == 2) total = AddSub<1>(codes, scales[1], zero, x[m], total);
      Store(at, total);
    }
  }

  // `weights`: Blocks of cols columns.
  template <int kRows, typename Block>
  static void Multiply(const void* weights, const void* tile, int64_t cols, float* acc,
                       WeightsAhead weights_ahead) {
    const auto* at = static_cast<const uint8_t*>(weights);
    const auto* x = static_cast<const PairsRow*>(tile);
    const ByteVec table = Shape::Table();
    Prefetches<Block::kAheadLines> ahead(weights_ahead, cols / kBlock);
    for (int64_t begin = 0; begin < cols; begin += kTraits.columns, at += Block::kBytes) {
      const Block w(at);
      for (int part = 0; part < Shape::kParts; ++part, x += kRows) {
        ahead.Next();
        AddPart<kRows>(w, part, 0, table, x, acc);
        AddPart<kRows>(w, part, 1, table, x, acc);
      }
    }
  }
};

template <BlockTraits kTraits, typename Layout, typename Packed, int... kSizes>
constexpr FormatKernels MakePairs(TileSizes<kSizes...>) {
  return {TileKind::kInt8Pairs,
          Layout::Bytes,
          Layout::Pack,
          Layout::Unpack,
          {PairsPanel<kTraits>::template Multiply<kSizes, Packed>...}};
}

// Formats with a table: looking its entries up takes a fifth of the time of a tile.
template <BlockTraits kTraits, typename Layout, int... kSizes>
constexpr FormatKernels MakeExpandablePairs(TileSizes<kSizes...>) {
  return MakeExpandable<Layout, PairsPanel<kTraits>, PackedBlock<kTraits>, ExpandedBlock<kTraits>,
                        kSizes...>(TileKind::kInt8Pairs, /*expand_tiles=*/4);
}

}  // namespace
}  // namespace heddle::kernels::cpu
