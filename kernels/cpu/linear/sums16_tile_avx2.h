// How AVX2 makes the tiles of sums16_tile.h, also for AVX-512: the layout is the same.
// REQUIRES: block_parts.h included before, on AVX2.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/linear/sums16_tile.h"

namespace heddle::kernels::cpu {
namespace {

class Sums16Tile {
 public:
  static constexpr int64_t kGroupColumns = kGroupBlocks * kBlock;

  // Writes `blocks` <= kGroupBlocks blocks of row m of a group.
  static void PutRow(const float* x, int64_t blocks, int32_t tile_rows, int32_t m, char* group) {
    float largest[kGroupBlocks];
    const float of_group = LargestOf(x, blocks, largest);
    const float base = of_group * (1.0f / (1 << kSums16MaxExponent) / 127);
    Words header{group + 4 * m, tile_rows};
    header.Put(base);
    for (int i = 1; i < static_cast<int>(kSums16GroupRowBytes / 4); ++i) header.Put(0);
    const float inverse = of_group > 0 ? 127.0f / of_group : 0.0f;
    char* block = group + tile_rows * kSums16GroupRowBytes;
    for (int64_t b = 0; b < blocks; ++b, block += tile_rows * kSums16BlockRowBytes) {
      const int32_t exponent = ExponentOf(of_group, largest[b]);
      const auto scale = static_cast<float>(1 << (kSums16MaxExponent - exponent));
      const __m256i codes = CodesOf(x + b * kBlock, Set(inverse * scale));
      std::memcpy(block + m * kBlock, &codes, kBlock);
      const Halves halves =
          PutSums(codes, exponent, Words{block + tile_rows * kBlock + 4 * m, tile_rows});
      PutGroupSums(halves, exponent, static_cast<int>(b), group + 4 * (tile_rows + m), tile_rows);
    }
  }

 private:
  // Stores the words of one row in consecutive arrays of [tile_rows].
  struct Words {
    char* at;
    int32_t tile_rows;
    template <typename T>
    void Put(T word) {
      static_assert(sizeof(word) == 4);
      std::memcpy(at, &word, 4);
      at += 4 * tile_rows;
    }
  };
  struct Halves {
    int32_t sums[2];
  };

  // The largest magnitudes of a group's blocks, and of the group; NaN if there is one.
  static float LargestOf(const float* x, int64_t blocks, float* largest) {
    int32_t of_group = 0;
    for (int64_t b = 0; b < blocks; ++b, x += kBlock) {
      IntVec bits = Bits(Abs(Load(x)));  // integers in the order of the floats, NaN last
      for (int i = kLanes; i < kBlock; i += kLanes) {
        bits = AsIntVec(_mm256_max_epi32(AsIntSums(bits), AsIntSums(Bits(Abs(Load(x + i))))));
      }
      const __m256i all = AsIntSums(bits);
      __m128i most = _mm_max_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
      most = _mm_max_epi32(most, _mm_shuffle_epi32(most, 0x4e));
      const int32_t of_block =
          _mm_extract_epi32(_mm_max_epi32(most, _mm_shuffle_epi32(most, 0xb1)), 0);
      std::memcpy(largest + b, &of_block, 4);
      of_group = of_block > of_group ? of_block : of_group;
    }
    float value;
    std::memcpy(&value, &of_group, 4);
    return value;
  }

  // The largest e with 2^(e - kSums16MaxExponent) >= of_block / of_group / 2, and at least 0.
  static int32_t ExponentOf(float of_group, float of_block) {
    const float ratio = of_group / of_block;  // 2^down <= ratio < 2^(down + 1)
    int32_t bits;
    std::memcpy(&bits, &ratio, 4);
    const int32_t down = (bits >> 23) - 127;  // 128 where of_block is 0
    if (down < 0) return kSums16MaxExponent;  // not finite
    return down < kSums16MaxExponent ? kSums16MaxExponent - down : 0;
  }

  static __m256i CodesOf(const float* x, Vec inverse) {
    __m256i words[4];
    for (int i = 0; i < 4; ++i) words[i] = _mm256_cvtps_epi32(Load(x + i * kLanes) * inverse);
    const __m256i low = _mm256_packs_epi32(words[0], words[1]);
    const __m256i high = _mm256_packs_epi32(words[2], words[3]);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    return _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
  }

  // Writes what follows the codes in a block. Returns the sums of its halves.
  static Halves PutSums(__m256i codes, int32_t exponent, Words words) {
    const int32_t power = 1 << exponent;
    __m256i sums = _mm256_maddubs_epi16(_mm256_set1_epi8(1), codes);  // each lane holds one half
    sums = _mm256_add_epi16(sums, _mm256_shuffle_epi32(sums, 0x4e));
    sums = _mm256_add_epi16(sums, _mm256_shuffle_epi32(sums, 0xb1));
    const __m256i both = _mm256_add_epi16(sums, _mm256_permute4x64_epi64(sums, 0x4e));
    const __m256i minus8 = _mm256_sub_epi16(_mm256_setzero_si256(), _mm256_slli_epi16(both, 3));
    const __m256i minus32 = _mm256_sub_epi16(_mm256_setzero_si256(), _mm256_slli_epi16(sums, 5));
    const __m256i whole = _mm256_madd_epi16(sums, _mm256_set1_epi16(1));
    const Halves halves = {{_mm256_extract_epi32(whole, 0), _mm256_extract_epi32(whole, 4)}};
    words.Put(power * 0x10001);
    words.Put(static_cast<float>(power));
    words.Put(_mm256_extract_epi32(minus8, 0));
    words.Put(_mm256_extract_epi32(minus32, 0));
    words.Put(_mm256_extract_epi32(minus32, 4));
    words.Put(static_cast<float>((halves.sums[0] + halves.sums[1]) * power));
    return halves;
  }
  // `sums`: the row's place in the header behind the bases.
  static void PutGroupSums(const Halves& halves, int32_t exponent, int b, char* sums,
                           int32_t tile_rows) {
    const int32_t down = kSums16Unit - exponent;
    const int16_t whole = ShiftedSum(halves.sums[0] + halves.sums[1], down);
    const int16_t parts[2] = {ShiftedSum(halves.sums[0], down), ShiftedSum(halves.sums[1], down)};
    std::memcpy(sums + 4 * (b / 2 * tile_rows) + 2 * (b % 2), &whole, 2);
    std::memcpy(sums + 4 * ((kGroupBlocks / 2 + b) * tile_rows), parts, 4);
  }
  // sum / 2^down, rounded to nearest.
  static int16_t ShiftedSum(int32_t sum, int32_t down) {
    sum = down <= 0 ? sum * (1 << -down) : (sum + (1 << (down - 1))) >> down;
    return static_cast<int16_t>(sum > INT16_MAX ? INT16_MAX : sum);
  }
};

// Implements TileKernels::prepare. For non-finite x the codes are arbitrary, and the base carries
// it on.
inline void PrepareSums16Tile(const float* x, int64_t stride, int32_t rows, int32_t tile_rows,
                              int64_t cols, void* tile) {
  auto* out = static_cast<char*>(tile);
  if (rows < tile_rows) {
    std::memset(out, 0, static_cast<size_t>(Sums16TileBytes(tile_rows, cols / kBlock)));
  }
  for (int64_t begin = 0; begin < cols; begin += Sums16Tile::kGroupColumns) {
    const int64_t left = cols - begin;
    const int64_t n = left < Sums16Tile::kGroupColumns ? left : Sums16Tile::kGroupColumns;
    for (int32_t m = 0; m < rows; ++m) {
      Sums16Tile::PutRow(x + m * stride + begin, n / kBlock, tile_rows, m, out);
    }
    out += Sums16TileBytes(tile_rows, n / kBlock);
  }
}

}  // namespace
}  // namespace heddle::kernels::cpu
