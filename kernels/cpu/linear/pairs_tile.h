// Tiles of activations for pairs.h: int8 with an F32 scale for each block of 32 columns. The
// scale is the smallest that keeps the sums of pairs.h in 16 bits. With codes x of a block:
//   neighbours 2 j, 2 j + 1: their positive codes are at most 128 together, and so are their
//   negative ones: 255 * 128 <= INT16_MAX;
//   columns 8 i, 8 i + 1, 8 i + 4, 8 i + 5, and those 2 behind them: their magnitudes are at most
//   255 together: 128 * 255 <= INT16_MAX.
// Four of a normal distribution rarely are all large: its codes are 0.8 times as large as those
// that a block's largest magnitude alone would allow. Where a few are far above the rest they are
// as large.
// pairs_tile_avx2.h makes them.
// REQUIRES: linear_int8.h included before.
#pragma once

#include <cstdint>

namespace heddle::kernels::cpu {
namespace {

// One block of a row of x.
struct PairsRow {
  int8_t x[kBlock];
  // -128 times the sums of x that a lane adds in columns [8 i, 8 i + 8): as two int16, of 8 i,
  // 8 i + 1, 8 i + 4 and 8 i + 5, and of the others.
  int32_t corrections[4];
  int32_t sum;
  float scale;
};

}  // namespace
}  // namespace heddle::kernels::cpu
