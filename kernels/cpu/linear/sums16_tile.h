// Tiles of activations for sums16.h: int8 with a scale for each block of 32 columns, which is
// base * 2^e, 0 <= e <= 14. The blocks of 256 columns, a group, share the base: its largest
// magnitude is 127 at the largest exponent, and each block has the exponent that lets its codes use
// at least half of the range. sums16_tile_avx2.h makes them.
//
// A pair is two int16 in the low and high half of an int32: sums of the columns 4 g, 4 g + 1 and of
// 4 g + 2, 4 g + 3 of some groups g of four columns, as the product instruction adds them; or twice
// the same number.
// REQUIRES: linear_int8.h included before.
#pragma once

#include <cstdint>

namespace heddle::kernels::cpu {
namespace {

// 2^14 is an int16, and sums of 32 products * 2^14 are int32.
constexpr int kSums16MaxExponent = 14;
// Sums in a group's header are in units of base * 2^kSums16Unit: 4096 of a block at the largest
// exponent fill an int16. Those of blocks at exponents smaller by up to 3 stay exact, others are
// rounded.
constexpr int kSums16Unit = kSums16MaxExponent - 3;

// One block of 32 columns of a tile of kRows rows of x.
template <int kRows>
struct Sums16Block {
  int8_t x[kRows][kBlock];
  int32_t powers[kRows];      // 2^e, in pairs
  float float_powers[kRows];  // 2^e
  int32_t minus8[kRows];      // -8 times the sums of x, in pairs
  int32_t minus32[2][kRows];  // -32 times the sums of either half, in pairs
  float scaled_sums[kRows];   // sum of x * 2^e
};

// The header of a group, before its blocks.
template <int kRows>
struct Sums16Group {
  float base[kRows];
  int32_t block_sums[kGroupBlocks / 2][kRows];  // of blocks 2 i and 2 i + 1, in pairs
  int32_t half_sums[kGroupBlocks][kRows];       // of the halves of block i, in pairs
};

// The layout of kInt8Sums16: Sums16Group, then up to kGroupBlocks of Sums16Block, for each 256
// columns.
constexpr int64_t kSums16GroupRowBytes = sizeof(Sums16Group<1>);
constexpr int64_t kSums16BlockRowBytes = sizeof(Sums16Block<1>);

inline int64_t Sums16TileBytes(int64_t tile_rows, int64_t blocks) {
  const int64_t groups = (blocks + kGroupBlocks - 1) / kGroupBlocks;
  return tile_rows * (groups * kSums16GroupRowBytes + blocks * kSums16BlockRowBytes);
}

}  // namespace
}  // namespace heddle::kernels::cpu
