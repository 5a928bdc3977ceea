// Products with panels of the blocked formats (block_panels.h has their layout): activations are
// quantised to int8 per 32 columns, products of codes are summed exactly in int32, and one Fma per
// sub-block adds sum * (scale of w * scale of x) to the F32 result, in order of k; formats with an
// offset add offset * (sum of x) likewise.
//
// Codes are unsigned where the level's instruction wants them so: what linear codes exceed their
// values by, and what tables are shifted by (kTableBias), is taken off again with the sums of x.
// REQUIRES: vec_*.h, vec_math.h, linear_float.h and linear_int8.h included before, and defined:
//   ByteVec, IntSums     kLanes x 4 bytes; kLanes int32
//   LoadBytes, And(bytes, mask), Or, Lookup(table of 16, indices), LoadTable(16 bytes)
//   Shift<n>        each 16 bits: right by n, left by -n
//   SetInts, ToFloat, FromInt8(p), FromUint8(p)   kLanes at a time
//   DotAdd<F>(sum, w, x)    sum + the four products of each lane with the bytes of x
//   kTableBias      added to table entries so that DotAdd can take them
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/block_format.h"
#include "kernels/cpu/block_panels.h"
#include "kernels/cpu/kernel_table.h"

namespace heddle::kernels::cpu {
namespace {

// One block of 32 columns of a tile of kRows rows of x.
template <int kRows>
struct HalvesTileBlock {
  int8_t x[kRows][kBlock];
  float scale[kRows];
  int32_t sum[kRows][2];       // of either half
  float scaled_sum[kRows][2];  // times scale
};
constexpr int64_t kHalvesBytes = kBlock + 20;  // per row

inline void PrepareHalvesTile(const float* x, int64_t stride, int32_t rows, int32_t tile_rows,
                              int64_t cols, void* tile) {
  auto* out = static_cast<char*>(tile);
  for (int64_t b = 0; b < cols / kBlock; ++b, out += tile_rows * kHalvesBytes) {
    auto* q = reinterpret_cast<int8_t*>(out);
    auto* scale = reinterpret_cast<float*>(out + tile_rows * kBlock);
    auto* sum = reinterpret_cast<int32_t*>(scale + tile_rows);
    auto* scaled_sum = reinterpret_cast<float*>(sum + 2 * tile_rows);
    std::memset(out, 0, static_cast<size_t>(tile_rows * kHalvesBytes));
    for (int32_t m = 0; m < rows; ++m) {
      int32_t unused;
      PrepareInt8Block(x + m * stride + b * kBlock, q + m * kBlock, scale + m, &unused);
      for (int i = 0; i < kBlock; ++i) sum[2 * m + i / 16] += q[m * kBlock + i];
      for (int h = 0; h < 2; ++h) {
        scaled_sum[2 * m + h] = scale[m] * static_cast<float>(sum[2 * m + h]);
      }
    }
  }
}

// The constants of a format's panels at this level.
template <BlockFormat kFormat>
struct PanelOf {
  static constexpr BlockTraits kTraits = kBlockTraits[static_cast<int32_t>(kFormat)];
  static constexpr int kLowBits = kTraits.code_bits < 4 ? 2 : kTraits.code_bits < 8 ? 4 : 8;
  static constexpr int kHighBits = kTraits.code_bits - kLowBits;
  static constexpr int kSubs = kBlock / kTraits.sub_columns;
  static constexpr bool kHasSubs = kTraits.sub_scales != SubScales::kNone;
  static constexpr bool kNibbles = kTraits.sub_scales == SubScales::kNibbles;
  static constexpr bool kTable = kTraits.values != CodeValues::kLinear;
  static constexpr int kBias = kTable ? kTableBias : kTraits.bias;
  static constexpr int kHeaderBytes = kPanelRows * (kTraits.has_offset ? 4 : 2);
  static constexpr int kLowPlane =
      kHasSubs ? kPanelRows * kSubs * (kTraits.has_offset && !kNibbles ? 2 : 1) : 0;
  static constexpr int kHighPlane = kLowPlane + kLowBits * kPanelRows * 4;
  static constexpr int kPartBytes = kHighPlane + kHighBits * kPanelRows * 4;
  static constexpr int kParts = kTraits.columns / kBlock;

  static int64_t Bytes(int64_t cols) { return BlockPanelBytes(kFormat, kPanelRows, cols); }
  static void Pack(const void* source, int64_t row_bytes, int32_t rows, int64_t cols, void* panel) {
    PackBlockPanel(kFormat, kPanelRows, source, row_bytes, rows, cols, panel);
  }
  static void Unpack(const void* panel, int32_t row, int64_t cols, float* out) {
    UnpackBlockPanel(kFormat, kPanelRows, panel, row, cols, out);
  }

  static Vec LoadScale(const uint8_t* p) {
    const auto* halves = reinterpret_cast<const uint16_t*>(p);
    if constexpr (!kTraits.scale_is_bf16) return FromF16(halves);
    uint32_t bits[kLanes];
    for (int i = 0; i < kLanes; ++i) bits[i] = static_cast<uint32_t>(halves[i]) << 16;
    Vec v;
    std::memcpy(&v, bits, sizeof(v));
    return v;
  }

  // Field of group g in a plane of kBits bits at vector v, moved up to bit kTo.
  template <int kGroup, int kBits, int kTo>
  static ByteVec Field(const uint8_t* plane, int v) {
    ByteVec word = LoadBytes(plane + (kGroup % kBits * kPanelRows + v * kLanes) * 4);
    constexpr int kShift = kBits * (kGroup / kBits) - kTo;
    if constexpr (kShift != 0) word = Shift<kShift>(word);
    if constexpr (kBits == 8) return word;
    return And(word, static_cast<uint8_t>(((1 << kBits) - 1) << kTo));
  }

  // The codes, or table entries, of columns 4 kGroup .. of the rows of vector v, as DotAdd takes
  // them.
  template <int kGroup>
  static ByteVec Codes(const uint8_t* part, ByteVec table, int v) {
    ByteVec codes = Field<kGroup, kLowBits, 0>(part + kLowPlane, v);
    if constexpr (kHighBits > 0) {
      codes = Or(codes, Field<kGroup, kHighBits, kLowBits>(part + kHighPlane, v));
    }
    if constexpr (kTable) codes = Lookup(table, codes);
    return codes;
  }

  static ByteVec Table() {
    uint8_t entries[16] = {};
    for (int i = 0; i < 16; ++i) {
      int value = kTraits.values == CodeValues::kE2m1 ? kE2m1Values[i] : kIq4Values[i];
      entries[i] = static_cast<uint8_t>(value + kTableBias);
    }
    return LoadTable(entries);
  }

  // Adds the products of groups kGroup .. kEnd - 1 to `sums`.
  template <int kRows, int kGroup, int kEnd>
  static void Steps(const uint8_t* part, ByteVec table, const int8_t (*x)[kBlock],
                    IntSums (&sums)[kRows][2]) {
    ByteVec w0 = Codes<kGroup>(part, table, 0);
    ByteVec w1 = Codes<kGroup>(part, table, 1);
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      sums[m][0] = DotAdd<kTable>(sums[m][0], w0, x[m] + 4 * kGroup);
      sums[m][1] = DotAdd<kTable>(sums[m][1], w1, x[m] + 4 * kGroup);
    }
    if constexpr (kGroup + 1 < kEnd) Steps<kRows, kGroup + 1, kEnd>(part, table, x, sums);
  }

  // Scale and offset of sub-block h, vector v, of a part.
  static Vec SubScale(const uint8_t* part, int h, int v) {
    const uint8_t* p = part + h * kPanelRows + v * kLanes;
    if constexpr (kNibbles) return FromNibbles<0>(p);
    return FromInt8(reinterpret_cast<const int8_t*>(p));
  }
  static Vec SubOffset(const uint8_t* part, int h, int v) {
    if constexpr (kNibbles) return FromNibbles<4>(part + h * kPanelRows + v * kLanes);
    return FromUint8(part + (kSubs + h) * kPanelRows + v * kLanes);
  }
  template <int kShift>
  static Vec FromNibbles(const uint8_t* p) {
    uint8_t bytes[kLanes];
    for (int i = 0; i < kLanes; ++i) bytes[i] = (p[i] >> kShift) & 15;
    return FromUint8(bytes);
  }

  template <int kRows, int kHalf>
  static void AddSub(const uint8_t* part, ByteVec table, const HalvesTileBlock<kRows>& x,
                     const Vec (&scale)[2], const Vec (&offset)[2], Accumulators<kRows>& total) {
    IntSums sums[kRows][2];
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      int32_t sum = kSubs == 2 ? x.sum[m][kHalf] : x.sum[m][0] + x.sum[m][1];
      sums[m][0] = sums[m][1] = SetInts(-kBias * sum);
    }
    constexpr int kCount = 8 / kSubs;
    Steps<kRows, kHalf * kCount, (kHalf + 1) * kCount>(part, table, x.x, sums);
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      Vec w = scale[v];
      if constexpr (kHasSubs) w = w * SubScale(part, kHalf, v);
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) {
        total.sums[m][v] = Fma(ToFloat(sums[m][v]), w * Set(x.scale[m]), total.sums[m][v]);
      }
      if constexpr (kTraits.has_offset) {
        Vec add = offset[v];
        if constexpr (kHasSubs) add = add * SubOffset(part, kHalf, v);
#pragma GCC unroll 8
        for (int m = 0; m < kRows; ++m) {
          float sum = kSubs == 2 ? x.scaled_sum[m][kHalf] : x.scaled_sum[m][0] + x.scaled_sum[m][1];
          total.sums[m][v] = Fma(add, Set(sum), total.sums[m][v]);
        }
      }
    }
  }

  template <int kRows>
  static void Multiply(const void* panel, const void* tile, int64_t cols, float* acc) {
    const auto* p = static_cast<const uint8_t*>(panel);
    const auto* x = static_cast<const HalvesTileBlock<kRows>*>(tile);
    const ByteVec table = Table();
    Accumulators<kRows> total;
    total.Start(acc);
    for (int64_t begin = 0; begin < cols; begin += kTraits.columns) {
      Vec scale[2], offset[2] = {};
      for (int v = 0; v < 2; ++v) {
        scale[v] = LoadScale(p + v * kLanes * 2);
        if (kTraits.has_offset) {
          offset[v] = FromF16(reinterpret_cast<const uint16_t*>(p) + kPanelRows + v * kLanes);
        }
      }
      p += kHeaderBytes;
      for (int part = 0; part < kParts; ++part, p += kPartBytes, ++x) {
        PrefetchAhead(p, kPartBytes);
        AddSub<kRows, 0>(p, table, *x, scale, offset, total);
        if constexpr (kSubs == 2) AddSub<kRows, 1>(p, table, *x, scale, offset, total);
      }
    }
    total.Save(acc);
  }
};

template <BlockFormat kFormat, int... kSizes>
constexpr FormatKernels MakeBlockFormat() {
  return MakeFormat<PanelOf<kFormat>, kSizes...>(TileKind::kInt8Halves);
}

// In the order of BlockFormat.
template <int... kSizes>
constexpr BlockKernels MakeBlockKernels() {
  return {{sizeof...(kSizes), {kSizes...}, PrepareHalvesTile},
          {MakeBlockFormat<BlockFormat::kQ4_1, kSizes...>(),
           MakeBlockFormat<BlockFormat::kQ5_0, kSizes...>(),
           MakeBlockFormat<BlockFormat::kQ5_1, kSizes...>(),
           MakeBlockFormat<BlockFormat::kQ2_K, kSizes...>(),
           MakeBlockFormat<BlockFormat::kQ3_K, kSizes...>(),
           MakeBlockFormat<BlockFormat::kQ4_K, kSizes...>(),
           MakeBlockFormat<BlockFormat::kQ5_K, kSizes...>(),
           MakeBlockFormat<BlockFormat::kQ6_K, kSizes...>(),
           MakeBlockFormat<BlockFormat::kIQ4_NL, kSizes...>(),
           MakeBlockFormat<BlockFormat::kIQ4_XS, kSizes...>(),
           MakeBlockFormat<BlockFormat::kMXFP4, kSizes...>()}};
}

}  // namespace
}  // namespace heddle::kernels::cpu
