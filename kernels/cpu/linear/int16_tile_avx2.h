// Tiles of activations for int16_avx2.h: int16 with one scale for 256 columns, a group.
// REQUIRES: block_parts.h included before, on AVX2.
#pragma once

#include <cstdint>
#include <cstring>

namespace heddle::kernels::cpu {
namespace {

// One block of a tile of kRows rows of x. Of each four columns, 0 and 2 are followed by 1 and 3:
// the order in which bytes are widened.
template <int kRows>
struct Int16Block {
  int16_t x[kRows][kBlock];
  int32_t sum[kRows];
};

// The layout of kInt16: per group of up to 256 columns F32 scales [kRows], then its blocks.
struct Int16Tile {
  static constexpr int64_t kGroupColumns = kGroupBlocks * kBlock;

  static int64_t Bytes(int32_t tile_rows, int64_t blocks) {
    const int64_t groups = (blocks + kGroupBlocks - 1) / kGroupBlocks;
    return tile_rows * (groups * 4 + blocks * static_cast<int64_t>(sizeof(Int16Block<1>)));
  }

  // Bits of the largest magnitude; those of NaN are above all others.
  static float LargestOf(const float* x, int64_t n) {
    IntVec largest = {};
    for (int64_t i = 0; i < n; i += kLanes) {
      const IntVec bits = Bits(Abs(Load(x + i)));
      largest = bits > largest ? bits : largest;
    }
    int32_t most = 0;
    for (int i = 0; i < kLanes; ++i) most = largest[i] > most ? largest[i] : most;
    float value;
    std::memcpy(&value, &most, 4);
    return value;
  }
  // Rounds 32 columns; returns the sum of the results.
  static int32_t RoundBlock(const float* x, Vec inverse, int16_t* out) {
    const __m256i order = _mm256_set_epi8(15, 14, 11, 10, 13, 12, 9, 8, 7, 6, 3, 2, 5, 4, 1, 0, 15,
                                          14, 11, 10, 13, 12, 9, 8, 7, 6, 3, 2, 5, 4, 1, 0);
    IntVec sums = {};
    for (int i = 0; i < kBlock; i += 2 * kLanes) {
      const __m256i low = _mm256_cvtps_epi32(Load(x + i) * inverse);
      const __m256i high = _mm256_cvtps_epi32(Load(x + i + kLanes) * inverse);
      const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
      sums += AsIntVec(_mm256_madd_epi16(words, _mm256_set1_epi16(1)));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), _mm256_shuffle_epi8(words, order));
    }
    int32_t sum = 0;
    for (int i = 0; i < kLanes; ++i) sum += sums[i];
    return sum;
  }
};

// Implements TileKernels::prepare. For non-finite x the codes are arbitrary, and the scale carries
// it on.
inline void PrepareInt16Tile(const float* x, int64_t stride, int32_t rows, int32_t tile_rows,
                             int64_t cols, void* tile) {
  auto* out = static_cast<char*>(tile);
  if (rows < tile_rows) {
    std::memset(out, 0, static_cast<size_t>(Int16Tile::Bytes(tile_rows, cols / kBlock)));
  }
  for (int64_t begin = 0; begin < cols; begin += Int16Tile::kGroupColumns) {
    const int64_t left = cols - begin;
    const int64_t n = left < Int16Tile::kGroupColumns ? left : Int16Tile::kGroupColumns;
    for (int32_t m = 0; m < rows; ++m) {
      const float* row = x + m * stride + begin;
      const float largest = Int16Tile::LargestOf(row, n);
      const float scale = largest / INT16_MAX;
      const Vec inverse = Set(largest > 0 ? INT16_MAX / largest : 0.0f);
      std::memcpy(out + 4 * m, &scale, 4);
      for (int64_t b = 0; b < n / kBlock; ++b) {
        char* block = out + Int16Tile::Bytes(tile_rows, b) + (b == 0 ? 4 * tile_rows : 0);
        int16_t words[kBlock];
        const int32_t sum = Int16Tile::RoundBlock(row + b * kBlock, inverse, words);
        std::memcpy(block + m * sizeof(words), words, sizeof(words));
        std::memcpy(block + tile_rows * sizeof(words) + 4 * m, &sum, 4);
      }
    }
    out += Int16Tile::Bytes(tile_rows, n / kBlock);
  }
}

}  // namespace
}  // namespace heddle::kernels::cpu
