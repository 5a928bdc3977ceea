// How AVX2 makes the tiles of pairs_tile.h, also for AVX-512: the layout is the same.
// REQUIRES: block_parts.h included before, on AVX2.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/linear/pairs_tile.h"

namespace heddle::kernels::cpu {
namespace {

// The layout of kInt8Pairs: PairsRow [cols / kBlock][tile_rows].
struct PairsTile {
  // Rounding adds at most a half to each code.
  static constexpr float kLargestPair = 127;
  static constexpr float kLargestFour = 253;

  // The scale of a block; NaN or infinite if x is not finite.
  static float ScaleOf(const float* x) {
    IntVec largest = {};  // bits of floats without a sign, which are in the order of the floats
    for (int i = 0; i < kBlock; i += kLanes) {
      const Vec quarter = Load(x + i) * Set(0.25f);  // sums stay finite
      const Vec above = Max(quarter, Zero());
      const Vec magnitude = Abs(quarter);
      const Vec pairs = Max(AddNeighbours(above), AddNeighbours(magnitude - above));
      const Vec both = AddNeighbours(magnitude);
      const Vec fours = both + _mm256_permute2f128_ps(both, both, 1);
      const IntVec of_pairs = Bits(pairs);
      const IntVec of_fours = Bits(fours * Set(kLargestPair / kLargestFour));
      largest = of_pairs > largest ? of_pairs : largest;
      largest = of_fours > largest ? of_fours : largest;
    }
    int32_t most = 0;
    for (int i = 0; i < kLanes; ++i) most = largest[i] > most ? largest[i] : most;
    float value;
    std::memcpy(&value, &most, 4);
    return value * (4 / kLargestPair);
  }

  // For non-finite x the codes are arbitrary, and the scale carries it on.
  static void RoundBlock(const float* x, PairsRow& out) {
    out.scale = ScaleOf(x);
    const Vec inverse = Set(out.scale > 0 ? 1 / out.scale : 0.0f);
    __m256i words[2];
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const float* half = x + i * 2 * kLanes;
      words[i] = _mm256_packs_epi32(_mm256_cvtps_epi32(Load(half) * inverse),
                                    _mm256_cvtps_epi32(Load(half + kLanes) * inverse));
    }
    const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(words[0], words[1]),
                                                      _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    std::memcpy(out.x, &bytes, sizeof(out.x));
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
    const __m256i fours = _mm256_add_epi16(pairs, _mm256_shuffle_epi32(pairs, 0xb1));
    const __m256i corrections = _mm256_permutevar8x32_epi32(
        _mm256_sub_epi16(_mm256_setzero_si256(), _mm256_slli_epi16(fours, 7)),
        _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6));
    std::memcpy(out.corrections, &corrections, sizeof(out.corrections));
    out.sum = SumOf(AsIntVec(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1))));
  }

 private:
  static Vec AddNeighbours(Vec v) { return v + _mm256_permute_ps(v, 0xb1); }
  static int32_t SumOf(IntVec v) {
    int32_t sum = 0;
    for (int i = 0; i < kLanes; ++i) sum += v[i];
    return sum;
  }
};

// Implements TileKernels::prepare.
inline void PreparePairsTile(const float* x, int64_t stride, int32_t rows, int32_t tile_rows,
                             int64_t cols, void* tile) {
  auto* out = static_cast<PairsRow*>(tile);
  for (int64_t b = 0; b < cols / kBlock; ++b, out += tile_rows) {
    for (int32_t m = 0; m < rows; ++m) PairsTile::RoundBlock(x + m * stride + b * kBlock, out[m]);
    for (int32_t m = rows; m < tile_rows; ++m) out[m] = {};
  }
}

}  // namespace
}  // namespace heddle::kernels::cpu
