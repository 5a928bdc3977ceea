// Products with weights of signed bytes for AVX2 without VNNI, by int16.
//
// Products of two bytes of 8 bits do not stay in 16 bits when neighbours are added, unless signs
// are moved from one byte to the other beforehand, which costs as much as multiplying 16-bit
// numbers. So activations have 16 bits, which makes one scale enough for 256 columns, a group: it
// is applied once per group, and the rounding of activations is no longer seen.
//
// For each group, in order of k: t = 0; per sub-block of 16 or 32 columns one Fma adds its exact
// sum times the weights' F32 scale to t; then the result += t * scale of x. Packed and expanded
// panels give the same bits. REQUIRES: int16_tile_avx2.h and words_avx2.h included before, on AVX2.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/kernel_table.h"

namespace heddle::kernels::cpu {
namespace {

template <BlockTraits kTraits, typename Packed>
struct Int16Panel {
  using Shape = PanelShape<kTraits>;
  using Expanded = ExpandedWords<kTraits, Packed>;

  template <int kGroup, int kEnd, bool kFirst, int kRows, int kVecs, typename Block>
  [[gnu::always_inline]] static inline void Steps(const Block& w, int part, int vec, ByteVec table,
                                                  const int16_t (*x)[kBlock],
                                                  __m256i (&sums)[kRows][kVecs]) {
    __m256i words[kVecs][2];
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) w.template Words<kGroup>(part, table, vec + v, words[v]);
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) {
        int32_t pair;
        std::memcpy(&pair, x[m] + 4 * kGroup + 2 * i, 4);
        const __m256i two = _mm256_set1_epi32(pair);
#pragma GCC unroll 2
        for (int v = 0; v < kVecs; ++v) {
          const __m256i products = _mm256_madd_epi16(words[v][i], two);
          sums[m][v] =
              InOrder(kFirst && i == 0 ? products : _mm256_add_epi32(sums[m][v], products));
        }
      }
    }
    if constexpr (kGroup + 1 < kEnd) {
      Steps<kGroup + 1, kEnd, false>(w, part, vec, table, x, sums);
    }
  }

  // Adds the products of sub-block kSub of a part to t [kRows][kPanelRows].
  template <int kSub, int kRows, int kVecs, typename Block>
  [[gnu::always_inline]] static inline void AddSub(const Block& w, int part, int vec, ByteVec table,
                                                   const Int16Block<kRows>& x, float* t) {
    constexpr int kGroups = kGroupsOfFour / Shape::kSubs;
    __m256i sums[kRows][kVecs];
    if constexpr (Block::kHasZero) {
      static_assert(Shape::kSubs == 1);
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 2
        for (int v = 0; v < kVecs; ++v)
          sums[m][v] = AsIntSums(AsIntVec(w.Zero(vec + v)) * -x.sum[m]);
      }
    }
    Steps<kSub * kGroups, (kSub + 1) * kGroups, !Block::kHasZero>(w, part, vec, table, x.x, sums);
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) {
      const Vec scale = w.Scale(part, kSub, vec + v);
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) {
        float* at = t + m * kPanelRows + (vec + v) * kLanes;
        Store(at, Fma(ToFloat(sums[m][v]), scale, Load(at)));
      }
    }
  }

  template <int kRows, int kVecs, typename Block>
  [[gnu::always_inline]] static inline void AddPart(const Block& w, int part, int vec,
                                                    ByteVec table, const Int16Block<kRows>& x,
                                                    float* t) {
    AddSub<0, kRows, kVecs>(w, part, vec, table, x, t);
    if constexpr (Shape::kSubs == 2) AddSub<1, kRows, kVecs>(w, part, vec, table, x, t);
  }

  template <int kRows, typename Block>
  static void MultiplyGroup(const uint8_t* weights, const float* base, int parts, float* acc) {
    // 8 sums, two to four vectors of weights, one of x and a product are in registers.
    constexpr int kVecs = kRows > 4 ? 1 : 2;
    const auto* x = reinterpret_cast<const Int16Block<kRows>*>(base + kRows);
    const ByteVec table = Shape::Table();
    alignas(32) float t[kRows * kPanelRows] = {};
    for (int begin = 0; begin < parts; begin += Shape::kParts, weights += Block::kBytes) {
      const Block w(weights);
      for (int part = 0; part < Shape::kParts; ++part, ++x) {
        w.PrefetchBehind(part);
        AddPart<kRows, kVecs>(w, part, 0, table, *x, t);
        if constexpr (kVecs == 1) {
          LoadAgain();
          AddPart<kRows, kVecs>(w, part, 1, table, *x, t);
          LoadAgain();
        }
      }
    }
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const Vec scale = Set(base[m]);
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        const int at = m * kPanelRows + v * kLanes;
        Store(acc + at, Fma(Load(t + at), scale, Load(acc + at)));
      }
    }
  }

  // `weights`: Blocks of cols columns.
  template <int kRows, typename Block>
  static void Multiply(const void* weights, const void* tile, int64_t cols, float* acc) {
    const auto* w = static_cast<const uint8_t*>(weights);
    const auto* x = static_cast<const char*>(tile);
    for (int64_t left = cols / kBlock; left > 0; left -= kGroupBlocks) {
      const auto parts = static_cast<int>(left < kGroupBlocks ? left : kGroupBlocks);
      MultiplyGroup<kRows, Block>(w, reinterpret_cast<const float*>(x), parts, acc);
      w += parts / Shape::kParts * Block::kBytes;
      x += Int16Tile::Bytes(kRows, parts);
    }
  }

  static int64_t ExpandedBytes(int64_t cols) { return cols / kTraits.columns * Expanded::kBytes; }
  static void Expand(const void* panel, int64_t cols, void* out) {
    const ByteVec table = Shape::Table();
    const auto* from = static_cast<const uint8_t*>(panel);
    auto* to = static_cast<uint8_t*>(out);
    for (int64_t begin = 0; begin < cols; begin += kTraits.columns) {
      Expanded::Write(Packed(from), table, to);
      from += Packed::kBytes;
      to += Expanded::kBytes;
    }
  }
};

// Widening takes twice the time of a row. Few tiles of bytes gain less than that, since they read
// twice as much.
template <BlockTraits kTraits, typename Layout, typename Packed = PackedWords<kTraits>,
          int... kSizes>
constexpr FormatKernels MakeInt16(TileSizes<kSizes...>) {
  using Panel = Int16Panel<kTraits, Packed>;
  return MakeExpandable<Layout, Panel, Packed, typename Panel::Expanded, kSizes...>(
      TileKind::kInt16, /*expand_tiles=*/PanelShape<kTraits>::kTable ? 2 : 8);
}

}  // namespace
}  // namespace heddle::kernels::cpu
