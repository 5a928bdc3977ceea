// Blocks of 32 columns whose weights are small integers with one scale: activations are quantised
// to int8 per block as well, products are summed exactly in int32, and one Fma per block adds
// sum * (scale of w * scale of x) to the F32 result, in order of k.
//
// Layout of a panel, per block: F16 scales [kPanelRows], then
//   Q8_0: int8 [8 groups][kPanelRows][4]: group g holds columns 4g .. 4g + 3 of every row
//   Q4_0: nibbles [4 groups][kPanelRows][4]: low nibbles columns 4g .., high nibbles 16 + 4g ..
// Q4_0's value is nibble - 8, Q8_0's is stored as kQ8Bias + q; products with the unsigned stored
// number exceed the true ones by bias * sum(x), which the tile carries.
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
  int32_t sum128[kRows];  // -128 * sum of x
};

// Codes that the largest magnitude of a block may be mapped to. Each gives different roundings, and
// the best of six has a seventh less squared error than the first alone, for at most three percent
// coarser steps.
struct Level {
  float largest;
  float squared_step;  // 1 / largest^2
};
constexpr Level LevelOf(float largest) { return {largest, 1 / (largest * largest)}; }
constexpr Level kLevels[][2] = {{LevelOf(127), LevelOf(126.25f)},
                                {LevelOf(125.5f), LevelOf(124.75f)},
                                {LevelOf(124), LevelOf(123.25f)}};
constexpr float kRoundingMagic = 0x1.8p23f;  // adding it rounds to an integer in the low bits

// kLanes neighbouring blocks of a row transposed, one block per lane, so that sums and maxima over
// a block need no shuffles.
struct BlockColumns {
  alignas(64) float values[kBlock * kLanes];

  Vec operator[](int i) const { return Load(values + i * kLanes); }
};

// Blocks of a row rounded to int8.
struct RoundedBlocks {
  int8_t codes[kLanes][kBlock];
  float scales[kLanes];
  int32_t exponents[kLanes];  // for SharedScales only
  int32_t group_largest;      // bits of the group's largest magnitude, if lanes hold a part
  int32_t sums[2][kLanes];    // sums of the codes of either half
};

// Transposes the first `count` blocks at x; the rest are zeros.
inline void TransposeBlocks(const float* x, int count, BlockColumns& columns) {
  for (int c = 0; c < kBlock; c += kLanes) {
    Vec rows[kLanes];
#pragma GCC unroll 16
    for (int j = 0; j < kLanes; ++j) rows[j] = j < count ? Load(x + j * kBlock + c) : Zero();
    TransposeTo(rows, columns.values + c * kLanes, kLanes);
  }
}

inline IntVec CodesOf(Vec scaled) {
  const Vec magic = Set(kRoundingMagic);
  return Bits(scaled + magic) - Bits(magic);
}
inline Vec Rounded(Vec scaled) {
  const Vec magic = Set(kRoundingMagic);
  return (scaled + magic) - magic;
}

// Squared errors of rounding to two levels, which hide each other's latencies, in units of the
// blocks' largest magnitude.
inline void ErrorsOf(const BlockColumns& columns, Vec inverse_max, const Level (&levels)[2],
                     Vec (&errors)[2]) {
  const Vec inverse[2] = {Set(levels[0].largest) * inverse_max,
                          Set(levels[1].largest) * inverse_max};
  Vec sums[2][2] = {{Zero(), Zero()}, {Zero(), Zero()}};
  for (int i = 0; i < kBlock; i += 2) {
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      const Vec x = columns[i + j];
#pragma GCC unroll 2
      for (int l = 0; l < 2; ++l) {
        const Vec scaled = x * inverse[l];
        const Vec error = scaled - Rounded(scaled);
        sums[l][j] = Fma(error, error, sums[l][j]);
      }
    }
  }
  for (int l = 0; l < 2; ++l) {
    errors[l] = (sums[l][0] + sums[l][1]) * Set(levels[l].squared_step);
  }
}

// The level of kLevels with the least squared error; the first for non-finite blocks.
inline Vec BestLevels(const BlockColumns& columns, Vec max) {
  const Vec inverse_max = Set(1.0f) / max;
  Vec best = Set(kLevels[0][0].largest);
  Vec least = Set(__builtin_inff());
  for (const auto& levels : kLevels) {
    Vec errors[2];
    ErrorsOf(columns, inverse_max, levels, errors);
    for (int l = 0; l < 2; ++l) {
      best = Select(errors[l] < least, Set(levels[l].largest), best);
      least = Select(errors[l] < least, errors[l], least);
    }
  }
  return best;
}

// The largest magnitude of each block; NaN if it contains one.
inline Vec LargestOf(const BlockColumns& columns) {
  IntVec largest = {};
  for (int i = 0; i < kBlock; ++i) {
    const IntVec bits = Bits(Abs(columns[i]));  // integers in the order of the floats, NaN last
    largest = bits > largest ? bits : largest;
  }
  return FromBits(largest);
}

// Chooses the factors before rounding, and the stored scales: for each block the best of kLevels;
// then, for the resulting codes, the scale of least squared error.
struct OwnScales {
  static constexpr bool kRefits = true;

  static Vec Choose(const BlockColumns& columns, RoundedBlocks& rounded) {
    const Vec max = LargestOf(columns);
    const Vec level = BestLevels(columns, max);
    Store(rounded.scales, max / level);
    return Select(max > Zero(), level / max, Zero());
  }
};

// Each group of eight blocks has a base, from its largest magnitude, and each block the power of
// two, from 1 to 2^kMaxExponent, that lets its codes use at least half of the range: multiplying
// scales becomes adding exponents. The squared error is about twice that of OwnScales, which 4-bit
// weights hide.
constexpr int kGroupBlocks = 8;
struct SharedScales {
  static constexpr bool kRefits = false;
  static constexpr int kMaxExponent = 16;

  static Vec Choose(const BlockColumns& columns, RoundedBlocks& rounded) {
    const Vec max = LargestOf(columns);
    const Vec of_group = OfGroups(max, rounded.group_largest);
    // 2^down <= of_group / max < 2^(down + 1)
    IntVec down = (Bits(of_group / max) >> 23) - 127;  // 128 where max is 0
    down = down < kMaxExponent ? down : IntVec{} + kMaxExponent;
    down = down > 0 ? down : IntVec{};
    const IntVec exponents = (kMaxExponent - down) << 23;
    std::memcpy(rounded.exponents, &exponents, sizeof(exponents));
    Store(rounded.scales, of_group * Set(0x1p-16f / 127));
    const Vec inverse = FromBits((down + 127) << 23) * (Set(127.0f) / of_group);
    return Select(of_group > Zero(), inverse, Zero());
  }
  // The largest value of each lane's group. `known` counts if a group is more than the lanes.
  static Vec OfGroups(Vec max, int32_t known) {
    if constexpr (kLanes < kGroupBlocks) return FromBits(IntVec{} + known);
    int32_t bits[kLanes];
    const IntVec of_blocks = Bits(max);
    std::memcpy(bits, &of_blocks, sizeof(bits));
    for (int g = 0; g < kLanes; g += kGroupBlocks) {
      int32_t largest = 0;
      for (int i = g; i < g + kGroupBlocks; ++i) largest = bits[i] > largest ? bits[i] : largest;
      for (int i = g; i < g + kGroupBlocks; ++i) bits[i] = largest;
    }
    IntVec of_groups;
    std::memcpy(&of_groups, bits, sizeof(bits));
    return FromBits(of_groups);
  }
  // Bits of the largest magnitude in the group of block b of a row.
  static int32_t LargestOfGroup(const float* row, int64_t b, int64_t blocks) {
    const int64_t first = b / kGroupBlocks * kGroupBlocks;
    const int64_t end = first + kGroupBlocks < blocks ? first + kGroupBlocks : blocks;
    int32_t largest = 0;
    for (int64_t k = first * kBlock; k < end * kBlock; ++k) {
      int32_t bits;
      std::memcpy(&bits, row + k, 4);
      bits &= INT32_MAX;
      largest = bits > largest ? bits : largest;
    }
    return largest;
  }
};

// The sums of the codes that blocks times `inverse` round to, and scales fitted to these codes.
template <typename Scales>
inline void SumCodes(const BlockColumns& columns, Vec inverse, RoundedBlocks& rounded) {
  Vec products[2] = {Zero(), Zero()};  // for either half, as below
  Vec squares[2] = {Zero(), Zero()};
  Vec sums[2] = {Zero(), Zero()};
  for (int i = 0; i < 16; ++i) {
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      const Vec x = columns[h * 16 + i];
      const Vec code = Rounded(x * inverse);
      sums[h] = sums[h] + code;
      if constexpr (Scales::kRefits) products[h] = Fma(x, code, products[h]);
      if constexpr (Scales::kRefits) squares[h] = Fma(code, code, squares[h]);
    }
  }
  for (int h = 0; h < 2; ++h) {
    const IntVec whole = (CodesOf(sums[h]) << 18) >> 18;  // bounded even if x is not finite
    std::memcpy(rounded.sums[h], &whole, sizeof(whole));
  }
  if constexpr (Scales::kRefits) {
    const Vec square = squares[0] + squares[1];
    const Vec fitted = (products[0] + products[1]) / square;
    Store(rounded.scales, Select(square > Zero(), fitted, Load(rounded.scales)));
  }
}

// Rounds the first `count` <= kLanes blocks at x. For non-finite x the codes are arbitrary, and the
// scale carries it on.
template <typename Scales>
inline void RoundBlocks(const float* x, int count, RoundedBlocks& rounded) {
  BlockColumns columns;
  TransposeBlocks(x, count, columns);
  const Vec inverse = Scales::Choose(columns, rounded);
  SumCodes<Scales>(columns, inverse, rounded);
  float inverses[kLanes];
  Store(inverses, inverse);
  for (int j = 0; j < count; ++j) {
    for (int i = 0; i < kBlock; i += kLanes) {
      using Bytes = int8_t __attribute__((vector_size(kLanes)));
      const Vec scaled = Load(x + j * kBlock + i) * Set(inverses[j]);
      const Bytes bytes = __builtin_convertvector(CodesOf(scaled), Bytes);
      std::memcpy(rounded.codes[j] + i, &bytes, sizeof(bytes));
    }
  }
}

// Writes rows [0, rows) of x, rounded, into a tile of `tile_rows` rows. Tile has Scales;
// Bytes(tile_rows, blocks); Put, which writes row m of block b.
template <typename Tile>
inline void PrepareRoundedTile(const float* x, int64_t stride, int32_t rows, int32_t tile_rows,
                               int64_t cols, void* tile) {
  const int64_t blocks = cols / kBlock;
  auto* out = static_cast<char*>(tile);
  if (rows < tile_rows) std::memset(out, 0, static_cast<size_t>(Tile::Bytes(tile_rows, blocks)));
  RoundedBlocks rounded;
  for (int64_t b = 0; b < blocks; b += kLanes) {
    const int count = static_cast<int>(blocks - b < kLanes ? blocks - b : kLanes);
    for (int32_t m = 0; m < rows; ++m) {
      const float* row = x + m * stride;
      if constexpr (kLanes < kGroupBlocks) {
        rounded.group_largest = SharedScales::LargestOfGroup(row, b, blocks);
      }
      RoundBlocks<typename Tile::Scales>(row + b * kBlock, count, rounded);
      for (int j = 0; j < count; ++j) Tile::Put(out, tile_rows, m, b + j, rounded, j);
    }
  }
}

// The layout of TileBlock.
struct Int8Tile {
  using Scales = OwnScales;

  static int64_t Bytes(int32_t tile_rows, int64_t blocks) {
    return tile_rows * blocks * (kBlock + 8);
  }
  // Stores block `j` of `rounded` as row m of block b.
  static void Put(char* tile, int32_t tile_rows, int32_t m, int64_t b, const RoundedBlocks& rounded,
                  int j) {
    char* place = tile + Bytes(tile_rows, b);
    char* scales = place + tile_rows * kBlock;
    const int32_t sum128 = -128 * (rounded.sums[0][j] + rounded.sums[1][j]);
    std::memcpy(place + m * kBlock, rounded.codes[j], kBlock);
    std::memcpy(scales + 4 * m, &rounded.scales[j], 4);
    std::memcpy(scales + 4 * (tile_rows + m), &sum128, 4);
  }
};

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
