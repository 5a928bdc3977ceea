// Products with integer formats below 8 bits for processors without VNNI, by sums of 16 bits.
//
// One instruction multiplies unsigned codes with int8 activations and adds neighbours to 16 bits. A
// code less its bias is small enough for 8 or 16 products to stay in 16 bits, so that they are
// summed there, and widened once for 16 or 32 columns: two instructions for a vector of products,
// where widening each of them takes three. The widening instruction multiplies as well, and so
// takes one of the scales: the integer of a sub-block, or else the power of two of the activations.
//
// Activations are those of linear_shared.h: int8 with a scale base * 2^e for each block of 32
// columns, where the eight blocks of 256 columns, a group, share the base. For each group, in order
// of k: t = 0; per block, or sub-block with an F32 scale of its own, one Fma adds its exact sum to
// t, times the weights' F32 scale or, where sub-blocks have integer scales, times 2^e; an F32
// offset adds offset * (sum of x * 2^e) likewise. Integer scales and offsets belong to a group,
// whose t is multiplied by their F32 scale at its end. Then the result += t * base. PackedCodes and
// ExpandedCodes give the same bits. REQUIRES: sums16_codes.h and sums16_tile.h included before.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#include "kernels/cpu/kernel_table.h"

namespace heddle::kernels::cpu {
namespace {

template <BlockTraits kTraits>
struct Sums16Panel {
  using Shape = PanelShape<kTraits>;

  // How the products of 32 columns are summed, by the format's codes.
  template <typename Block>
  struct Plan {
    static constexpr int kBias = Block::kBias;
    static constexpr bool kHasZero = Block::kHasZero;  // its zero points are at most 16
    static constexpr int kLargestCode = Block::kLargestCode;
    static constexpr int kLargest = kHasZero                       ? 16
                                    : kBias > kLargestCode - kBias ? kBias
                                                                   : kLargestCode - kBias;
    static_assert(kLargestCode * 127 * 2 <= INT16_MAX);
    // Groups of four columns whose sum stays in 16 bits; sums of codes wrap around before the
    // bias is taken off, which does not matter.
    static constexpr int kFitting = INT16_MAX / (kLargest * 127 * 2);
    static constexpr int kSegments = kFitting < kGroupsOfFour || Shape::kSubs == 2 ? 2 : 1;
    static constexpr int kGroups = kGroupsOfFour / kSegments;
    static_assert(kFitting >= kGroups);
  };

  // -kBias times the sums of x in a segment.
  template <typename Block, int kSegment, int kRows>
  static IntSums Correction(const Sums16Block<kRows>& x, int m) {
    constexpr int kBias = Plan<Block>::kBias;
    constexpr int kStored = Plan<Block>::kSegments == 1 ? 8 : 32;
    const IntSums sums = SetInts(kStored == 8 ? x.minus8[m] : x.minus32[kSegment][m]);
    if constexpr ((kBias & (kBias - 1)) != 0) {
      const IntSums minus1 = ShiftSigned<__builtin_ctz(kStored)>(sums);
      return MultiplyHalves(minus1, SetInts(kBias * 0x10001));
    } else if constexpr (kBias > kStored) {
      return Shift<-__builtin_ctz(kBias / kStored)>(sums);
    } else {
      return ShiftSigned<__builtin_ctz(kStored / kBias)>(sums);
    }
  }

  template <int kGroup, int kEnd, bool kFirst, int kRows, int kVecs, typename Block>
  [[gnu::always_inline]] static inline void Steps(const Block& w, int part, int vec, ByteVec table,
                                                  const int8_t (*x)[kBlock],
                                                  IntSums (&sums)[kRows][kVecs]) {
    ByteVec codes[kVecs];
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) codes[v] = w.template Codes<kGroup>(part, table, vec + v);
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      int32_t word;
      std::memcpy(&word, x[m] + 4 * kGroup, 4);
      const IntSums four = SetInts(word);
#pragma GCC unroll 2
      for (int v = 0; v < kVecs; ++v) {
        const IntSums products = MultiplyBytes(codes[v], four);
        sums[m][v] = InOrder(kFirst ? products : AddHalves(sums[m][v], products));
      }
    }
    if constexpr (kGroup + 1 < kEnd) {
      Steps<kGroup + 1, kEnd, false>(w, part, vec, table, x, sums);
    }
  }

  // The sums of a segment of a part, widened and multiplied.
  template <int kSegment, int kRows, int kVecs, typename Block>
  [[gnu::always_inline]] static inline void AddSegment(const Block& w, int part, int vec,
                                                       ByteVec table, const Sums16Block<kRows>& x,
                                                       IntSums (&wide)[kRows][kVecs]) {
    using P = Plan<Block>;
    IntSums sums[kRows][kVecs];
    constexpr bool kCorrects = P::kBias != 0 || P::kHasZero;
    if constexpr (P::kHasZero) {
      static_assert(P::kSegments == 1);
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) {
        const IntSums minus1 = ShiftSigned<3>(SetInts(x.minus8[m]));
#pragma GCC unroll 2
        for (int v = 0; v < kVecs; ++v) {
          sums[m][v] = MultiplyHalves(minus1, w.ZeroPairs(vec + v));
        }
      }
    } else if constexpr (kCorrects) {
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) {
        const IntSums start = Correction<Block, kSegment>(x, m);
#pragma GCC unroll 2
        for (int v = 0; v < kVecs; ++v) sums[m][v] = start;
      }
    }
    Steps<kSegment * P::kGroups, (kSegment + 1) * P::kGroups, !kCorrects>(w, part, vec, table, x.x,
                                                                          sums);
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) {
      constexpr int kSub = kSegment * (Shape::kSubs - 1);
      const IntSums own = Shape::kIntSubs ? w.ScalePairs(part, kSub, vec + v) : IntSums{};
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) {
        const IntSums factor = Shape::kIntSubs ? own : SetInts(x.powers[m]);
        const IntSums products = MultiplyPairs(sums[m][v], factor);
        wide[m][v] = kSegment == 0 || Shape::kFloatSubs ? products : AddInts(wide[m][v], products);
      }
    }
  }

  // Adds sums of a part, or of its sub-block kSub, times their scale to t [kRows][kPanelRows].
  template <int kSub, int kRows, int kVecs, typename Block>
  [[gnu::always_inline]] static inline void AddScaled(const Block& w, int part, int vec,
                                                      const Sums16Block<kRows>& x,
                                                      const IntSums (&wide)[kRows][kVecs],
                                                      float* t) {
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) {
      const Vec own = Shape::kIntSubs ? Zero() : w.Scale(part, kSub, vec + v);
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) {
        float* at = t + m * kPanelRows + (vec + v) * kLanes;
        const Vec scale = Shape::kIntSubs ? Set(x.float_powers[m]) : own;
        Vec total = Fma(ToFloat(wide[m][v]), scale, Load(at));
        if constexpr (Shape::kFloatOffsets) {
          total = Fma(w.Offset(vec + v), Set(x.scaled_sums[m]), total);
        }
        Store(at, total);
      }
    }
  }

  // Adds the products of a part to t.
  template <int kRows, int kVecs, typename Block>
  [[gnu::always_inline]] static inline void AddPart(const Block& w, int part, int vec,
                                                    ByteVec table, const Sums16Block<kRows>& x,
                                                    float* t) {
    IntSums wide[kRows][kVecs];
    AddSegment<0>(w, part, vec, table, x, wide);
    if constexpr (Shape::kFloatSubs) AddScaled<0>(w, part, vec, x, wide, t);
    if constexpr (Plan<Block>::kSegments == 2) AddSegment<1>(w, part, vec, table, x, wide);
    AddScaled<Shape::kFloatSubs ? 1 : 0>(w, part, vec, x, wide, t);
  }

  // Ends a group whose scales are integers times one F32: it is one block.
  template <int kRows, typename Block>
  [[gnu::always_inline]] static inline void ScaleGroup(const Block& w, const Sums16Group<kRows>& x,
                                                       float* t) {
    const Vec unit = Set(static_cast<float>(1 << kSums16Unit));
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      const Vec scale = w.BlockScale(v);
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) {
        float* at = t + m * kPanelRows + v * kLanes;
        Vec total = Load(at) * scale;
        if constexpr (Shape::kIntOffsets) {
          IntSums sum = SetInts(0);
#pragma GCC unroll 8
          for (int i = 0; i < Shape::kOffsetPairs; ++i) {
            const int32_t pair = Shape::kSubs == 2 ? x.half_sums[i][m] : x.block_sums[i][m];
            sum = AddInts(sum, MultiplyPairs(w.OffsetPair(i, v), SetInts(pair)));
          }
          total = Fma(ToFloat(sum), w.Offset(v) * unit, total);
        }
        Store(at, total);
      }
    }
  }

  // Adds the products of one group of `parts` parts to acc.
  template <int kRows, typename Block>
  static void MultiplyGroup(const uint8_t* weights, const Sums16Group<kRows>& group, int parts,
                            float* acc, Prefetches<Block::kAheadLines>& prefetches) {
    Prefetches<Block::kAheadLines> ahead = prefetches;  // in registers
    // Two vectors of codes, one of x and a product are in registers beside the sums.
    constexpr int kVecs = 2 * kRows > kMostSums ? 1 : 2;
    const auto* x = reinterpret_cast<const Sums16Block<kRows>*>(&group + 1);
    const ByteVec table = Shape::Table();
    alignas(sizeof(Vec)) float t[kRows * kPanelRows] = {};
    for (int begin = 0; begin < parts; begin += Shape::kParts, weights += Block::kBytes) {
      const Block w(weights);
      for (int part = 0; part < Shape::kParts; ++part, ++x) {
        ahead.Next();
        AddPart<kRows, kVecs>(w, part, 0, table, *x, t);
        if constexpr (kVecs == 1) {
          LoadAgain();
          AddPart<kRows, kVecs>(w, part, 1, table, *x, t);
          LoadAgain();
        }
      }
      if constexpr (Shape::kIntSubs) ScaleGroup(w, group, t);
    }
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const Vec base = Set(group.base[m]);
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        const int at = m * kPanelRows + v * kLanes;
        Store(acc + at, Fma(Load(t + at), base, Load(acc + at)));
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
      const auto& group = *reinterpret_cast<const Sums16Group<kRows>*>(x);
      MultiplyGroup<kRows, Block>(w, group, parts, acc, ahead);
      w += parts / Shape::kParts * Block::kBytes;
      x += Sums16TileBytes(kRows, parts);
    }
  }

  static int64_t ExpandedBytes(int64_t cols) {
    return cols / kTraits.columns * ExpandedCodes<kTraits>::kBytes;
  }
  static void Expand(const void* panel, int64_t cols, void* out) {
    const ByteVec table = Shape::Table();
    const auto* from = static_cast<const uint8_t*>(panel);
    auto* to = static_cast<uint8_t*>(out);
    for (int64_t begin = 0; begin < cols; begin += kTraits.columns) {
      ExpandedCodes<kTraits>::Write(PackedCodes<kTraits>(from), table, to);
      from += PackedCodes<kTraits>::kBytes;
      to += ExpandedCodes<kTraits>::kBytes;
    }
  }
};

// Decoding a panel takes the time of 1.0 to 1.4 rows and saves from the second tile on (cpu.md).
template <BlockTraits kTraits, typename Layout, int... kSizes>
constexpr FormatKernels MakeSums16(TileSizes<kSizes...>) {
  return MakeExpandable<Layout, Sums16Panel<kTraits>, PackedCodes<kTraits>, ExpandedCodes<kTraits>,
                        kSizes...>(TileKind::kInt8Sums16, /*expand_tiles=*/2);
}

}  // namespace
}  // namespace heddle::kernels::cpu
