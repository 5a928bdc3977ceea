// Blocks of 32 columns whose weights are small integers with one scale: activations are quantised
// to int8 per block as well, products are summed exactly in int32, and one Fma per block adds
// sum * (scale of w * scale of x) to the F32 result, in order of k.
//
// Layout of a panel, per block: F16 scales [kPanelRows], then
//   Q8_0: int8 [8 groups][kPanelRows][4]: group g holds columns 4g .. 4g + 3 of every row
//   Q4_0: nibbles [4 groups][kPanelRows][4]: low nibbles columns 4g .., high nibbles 16 + 4g ..
// Q4_0's value is nibble - 8, Q8_0's is stored as kQ8Bias + q; products with the unsigned stored
// number exceed the wanted ones by bias * sum(x), which the tile carries.
// REQUIRES: vec_*.h, vec_math.h and linear_float.h included before this one.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/kernel_table.h"

namespace heddle::kernels::cpu {
namespace {

constexpr int64_t kBlock = 32;

// One block of a tile of kRows rows.
template <int kRows>
struct TileBlock {
  int8_t x[kRows][kBlock];
  float scale[kRows];
  int32_t sum8[kRows];  // -8 * sum of x
};

// Levels that the largest magnitude of a block may become. Each draws other roundings, and the best
// of four has a sixth less of squared error than the first alone, for less than two percent of
// coarser steps.
struct Level {
  float largest;
  float squared_step;  // 1 / largest^2
};
constexpr Level LevelOf(float largest) { return {largest, 1 / (largest * largest)}; }
constexpr Level kLevels[] = {LevelOf(127), LevelOf(126.25f), LevelOf(125.5f), LevelOf(124.75f)};

// The level of kLevels with the least squared error; the first for what is not finite.
inline float BestLevel(const float* x, float max) {
  const Vec magic = Set(0x1.8p23f);  // adding it rounds to an integer in the low bits
  const float inverse_max = 1.0f / max;
  float best = kLevels[0].largest;
  float least = __builtin_inff();
  for (const Level& level : kLevels) {
    const Vec inverse = Set(level.largest * inverse_max);
    Vec sum = Zero();
    for (int i = 0; i < kBlock; i += kLanes) {
      const Vec scaled = Load(x + i) * inverse;
      const Vec error = scaled - ((scaled + magic) - magic);
      sum = Fma(error, error, sum);
    }
    const float squares = QuickSum(sum) * level.squared_step;
    best = squares < least ? level.largest : best;
    least = squares < least ? squares : least;
  }
  return best;
}

// Also the sums of the codes of either half of the block.
inline void PrepareInt8Block(const float* x, int8_t* q, float* scale, int32_t (&sums)[2]) {
  Vec largest = Zero();
  for (int i = 0; i < kBlock; i += kLanes) largest = Max(largest, Abs(Load(x + i)));
  const float max = ReduceMax(largest);
  const float level = max > 0 ? BestLevel(x, max) : kLevels[0].largest;
  *scale = max / level;
  const Vec inverse = Set(max > 0 ? level / max : 0.0f);
  const Vec magic = Set(0x1.8p23f);
  using Bytes = int8_t __attribute__((vector_size(kLanes)));
  IntVec halves[2] = {};
  for (int i = 0; i < kBlock; i += kLanes) {
    // Non-finite x: any bytes, the scale carries it on.
    const IntVec codes = Bits(Load(x + i) * inverse + magic) - Bits(magic);
    const Bytes bytes = __builtin_convertvector(codes, Bytes);
    std::memcpy(q + i, &bytes, sizeof(bytes));
    halves[i / 16] += (codes << 24) >> 24;  // as the byte has it
  }
  for (int h = 0; h < 2; ++h) {  // below 2^24: exact in any order
    sums[h] = static_cast<int32_t>(QuickSum(__builtin_convertvector(halves[h], Vec)));
  }
}

inline void PrepareInt8Tile(const float* x, int64_t stride, int32_t rows, int32_t tile_rows,
                            int64_t cols, void* tile) {
  auto* out = static_cast<char*>(tile);
  for (int64_t b = 0; b < cols / kBlock; ++b, out += tile_rows * (kBlock + 8)) {
    auto* q = reinterpret_cast<int8_t*>(out);
    auto* scale = reinterpret_cast<float*>(out + tile_rows * kBlock);
    auto* sum8 = reinterpret_cast<int32_t*>(out + tile_rows * (kBlock + 4));
    std::memset(out, 0, static_cast<size_t>(tile_rows * (kBlock + 8)));
    for (int32_t m = 0; m < rows; ++m) {
      int32_t sums[2];
      PrepareInt8Block(x + m * stride + b * kBlock, q + m * kBlock, scale + m, sums);
      sum8[m] = -8 * (sums[0] + sums[1]);
    }
  }
}

inline float ScaleOf(const uint8_t* block, int32_t row) {
  uint16_t halves[kLanes] = {};
  std::memcpy(halves, block + row * 2, 2);
  float values[kLanes];
  Store(values, FromF16(halves));
  return values[0];
}

// Format: kGroups, kSourceBytes (of a block in the checkpoint), kFlip (applied to each byte).
template <typename Format>
struct BlockPanel {
  static constexpr int64_t kBytes = kPanelRows * (2 + Format::kGroups * 4);

  static int64_t Bytes(int64_t cols) { return RoundUp64(cols / kBlock * kBytes); }

  static void Pack(const void* source, int64_t row_bytes, int32_t rows, int64_t cols, void* panel) {
    std::memset(panel, 0, static_cast<size_t>(Bytes(cols)));
    for (int32_t r = 0; r < rows; ++r) {
      const auto* in = static_cast<const uint8_t*>(source) + r * row_bytes;
      auto* out = static_cast<uint8_t*>(panel);
      for (int64_t b = 0; b < cols / kBlock; ++b, in += Format::kSourceBytes, out += kBytes) {
        std::memcpy(out + r * 2, in, 2);
        for (int g = 0; g < Format::kGroups; ++g) {
          uint32_t word;
          std::memcpy(&word, in + 2 + g * 4, 4);
          word ^= Format::kFlip * 0x01010101u;
          std::memcpy(out + kPanelRows * 2 + (g * kPanelRows + r) * 4, &word, 4);
        }
      }
    }
  }

  static void Unpack(const void* panel, int32_t row, int64_t cols, float* out) {
    const auto* block = static_cast<const uint8_t*>(panel);
    for (int64_t b = 0; b < cols / kBlock; ++b, block += kBytes, out += kBlock) {
      Format::Decode(block + kPanelRows * 2 + row * 4, ScaleOf(block, row), out);
    }
  }
};

template <uint32_t kFlipByte>
struct Q80 {
  static constexpr int kGroups = 8;
  static constexpr int64_t kSourceBytes = 34;
  static constexpr uint32_t kFlip = kFlipByte;  // 0x80: q + 128 as an unsigned byte
  static void Decode(const uint8_t* w, float scale, float* out) {
    for (int i = 0; i < kBlock; ++i) {
      uint8_t byte = w[i / 4 * kPanelRows * 4 + i % 4] ^ static_cast<uint8_t>(kFlip);
      out[i] = scale * static_cast<float>(static_cast<int8_t>(byte));
    }
  }
};

struct Q40 {
  static constexpr int kGroups = 4;
  static constexpr int64_t kSourceBytes = 18;
  static constexpr uint32_t kFlip = 0;
  static void Decode(const uint8_t* w, float scale, float* out) {
    for (int i = 0; i < 16; ++i) {
      uint8_t byte = w[i / 4 * kPanelRows * 4 + i % 4];
      out[i] = scale * static_cast<float>((byte & 0xf) - 8);
      out[i + 16] = scale * static_cast<float>((byte >> 4) - 8);
    }
  }
};

}  // namespace
}  // namespace heddle::kernels::cpu
