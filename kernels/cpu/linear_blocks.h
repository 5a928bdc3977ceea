// Products with panels of the blocked formats (block_panels.h has their layout).
//
// Formats of integer values: activations are quantised to int8 per 32 columns, products of codes
// are summed exactly in int32, and one Fma per sub-block adds sum * (scale of w * scale of x) to
// the F32 result, in order of k; formats with an offset add offset * (sum of x) likewise. Formats
// of float values (E4M3, NF4): weights are decoded to F32 and multiplied by F32 activations, one
// Fma per product in order of k, as in linear_float.h.
//
// Codes are unsigned where the level's instruction wants them so: what linear codes exceed their
// values by, and what tables are shifted by (kTableBias), is taken off again with the sums of x.
// REQUIRES: vec_*.h, vec_math.h, linear_float.h and linear_int8.h included before, and defined:
//   ByteVec, IntSums     kLanes x 4 bytes; kLanes int32
//   LoadBytes, And(bytes, mask), Or, Flip (the top bit of each byte), LoadTable(16 bytes),
//   Lookup(table, indices below 16)
//   Shift<n>        each 16 bits: right by n, left by -n
//   SetInts, ToFloat, FromInt8(p), FromUint8(p)   kLanes at a time
//   DotAdd<S>(sum, w, x)    sum + the four products of each lane with the bytes of x; S: w is
//                           signed, plus kTableBias
//   kTableBias      added to signed values so that DotAdd can take them: 128 or 0
//   FloatTable, LoadFloatTable(16 floats), LookupFloat<n>(table, w)   by the bits n .. n + 3
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

// As HalvesTileBlock has it.
struct HalvesTile {
  using Scales = OwnScales;

  static int64_t Bytes(int32_t tile_rows, int64_t blocks) {
    return tile_rows * blocks * (kBlock + 20);
  }
  static void Put(char* tile, int32_t tile_rows, int32_t m, int64_t b, const RoundedBlocks& rounded,
                  int j) {
    char* place = tile + Bytes(tile_rows, b);
    char* scales = place + tile_rows * kBlock;
    char* sums = scales + tile_rows * 4;
    char* scaled_sums = sums + tile_rows * 8;
    std::memcpy(place + m * kBlock, rounded.codes[j], kBlock);
    std::memcpy(scales + 4 * m, &rounded.scales[j], 4);
    for (int h = 0; h < 2; ++h) {
      const float scaled = rounded.scales[j] * static_cast<float>(rounded.sums[h][j]);
      std::memcpy(sums + 4 * (2 * m + h), &rounded.sums[h][j], 4);
      std::memcpy(scaled_sums + 4 * (2 * m + h), &scaled, 4);
    }
  }
};

// The constants of a format's panels at this level.
template <BlockFormat kFormat>
struct PanelOf {
  static constexpr BlockTraits kTraits = kBlockTraits[static_cast<int32_t>(kFormat)];
  static constexpr int kLowBits = kTraits.code_bits < 4 ? 2 : kTraits.code_bits < 8 ? 4 : 8;
  static constexpr int kHighBits = kTraits.code_bits - kLowBits;
  static constexpr int kSubs = kBlock / kTraits.sub_columns;
  static constexpr bool kHasSubs = kTraits.sub_scales != SubScales::kNone;
  static constexpr bool kNibbles = kTraits.sub_scales == SubScales::kNibbles;
  static constexpr bool kSigned = kTraits.values != CodeValues::kLinear;
  static constexpr bool kTable =
      kTraits.values == CodeValues::kIq4 || kTraits.values == CodeValues::kE2m1;
  static constexpr int kBias = kSigned ? kTableBias : kTraits.bias;
  static constexpr int kScaleBytes = kTraits.scale == ScaleType::kF32 ? 4 : 2;
  static constexpr int kHeaderBytes =
      kPanelRows * (kScaleBytes + (kTraits.has_offset ? 2 : 0) + (kTraits.has_zero ? 1 : 0));
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
    if constexpr (kTraits.scale == ScaleType::kF32) return Load(reinterpret_cast<const float*>(p));
    const auto* halves = reinterpret_cast<const uint16_t*>(p);
    return kTraits.scale == ScaleType::kF16 ? FromF16(halves) : FromBF16(halves);
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
    if constexpr (kTraits.values == CodeValues::kInt8 && kTableBias != 0) codes = Flip(codes);
    return codes;
  }

  static ByteVec Table() {
    uint8_t entries[16] = {};
    for (int i = 0; i < 16; ++i) {
      const int8_t value = kTraits.values == CodeValues::kE2m1 ? kE2m1Values[i] : kIq4Values[i];
      entries[i] = static_cast<uint8_t>(value + kTableBias);
    }
    return LoadTable(entries);
  }

  // Adds the products of groups kGroup .. kEnd - 1 to `sums`. Inlined, or the sums of formats with
  // much to decode live in memory (GCC 12), at half of the speed.
  template <int kRows, int kGroup, int kEnd>
  [[gnu::always_inline]] static inline void Steps(const uint8_t* part, ByteVec table,
                                                  const int8_t (*x)[kBlock],
                                                  IntSums (&sums)[kRows][2]) {
    ByteVec w0 = Codes<kGroup>(part, table, 0);
    ByteVec w1 = Codes<kGroup>(part, table, 1);
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      sums[m][0] = DotAdd<kSigned>(sums[m][0], w0, x[m] + 4 * kGroup);
      sums[m][1] = DotAdd<kSigned>(sums[m][1], w1, x[m] + 4 * kGroup);
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

  // What a block holds beside its codes.
  struct Header {
    Vec scale[2];
    Vec offset[2];
    Vec zero[2];

    explicit Header(const uint8_t* p) {
      for (int v = 0; v < 2; ++v) {
        const uint8_t* rest = p + kPanelRows * kScaleBytes;
        scale[v] = LoadScale(p + v * kLanes * kScaleBytes);
        if constexpr (kTraits.has_offset) {
          offset[v] = FromF16(reinterpret_cast<const uint16_t*>(rest) + v * kLanes);
        }
        if constexpr (kTraits.has_zero) {
          zero[v] = FromInt8(reinterpret_cast<const int8_t*>(rest) + v * kLanes);
        }
      }
    }
  };

  template <int kRows, int kHalf>
  static int32_t SumOf(const HalvesTileBlock<kRows>& x, int m) {
    return kSubs == 2 ? x.sum[m][kHalf] : x.sum[m][0] + x.sum[m][1];
  }

  template <int kRows, int kHalf>
  static void AddSub(const uint8_t* part, ByteVec table, const HalvesTileBlock<kRows>& x,
                     const Header& header, Accumulators<kRows>& total) {
    IntSums sums[kRows][2];
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      sums[m][0] = sums[m][1] = SetInts(-kBias * SumOf<kRows, kHalf>(x, m));
    }
    constexpr int kCount = 8 / kSubs;
    Steps<kRows, kHalf * kCount, (kHalf + 1) * kCount>(part, table, x.x, sums);
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      Vec w = header.scale[v];
      if constexpr (kHasSubs) w = w * SubScale(part, kHalf, v);
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) {
        Vec sum = ToFloat(sums[m][v]);
        if constexpr (kTraits.has_zero) {  // all below 2^24: exact
          sum = Fma(header.zero[v], Set(-static_cast<float>(SumOf<kRows, kHalf>(x, m))), sum);
        }
        total.sums[m][v] = Fma(sum, w * Set(x.scale[m]), total.sums[m][v]);
      }
      if constexpr (kTraits.has_offset) {
        Vec add = header.offset[v];
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
  static void MultiplyIntegers(const void* panel, const void* tile, int64_t cols, float* acc) {
    const auto* p = static_cast<const uint8_t*>(panel);
    const auto* x = static_cast<const HalvesTileBlock<kRows>*>(tile);
    const ByteVec table = Table();
    Accumulators<kRows> total;
    total.Start(acc);
    for (int64_t begin = 0; begin < cols; begin += kTraits.columns) {
      const Header header(p);
      p += kHeaderBytes;
      for (int part = 0; part < kParts; ++part, p += kPartBytes, ++x) {
        PrefetchAhead(p, kPartBytes);
        AddSub<kRows, 0>(p, table, *x, header, total);
        if constexpr (kSubs == 2) AddSub<kRows, 1>(p, table, *x, header, total);
      }
    }
    total.Save(acc);
  }

  // The weights in bits kShift .. of each lane, times the scale.
  template <int kShift>
  static Vec FloatValue(IntVec words, const FloatTable& table, Vec scale) {
    if constexpr (kTraits.values == CodeValues::kNf4) {
      return LookupFloat<kShift>(table, words) * scale;
    } else {
      // Sign, exponent and mantissa to their places in F32; 2^120 moves the exponent's bias.
      IntVec top = words << (24 - kShift);
      IntVec bits = (top & INT32_MIN) | ((top >> 4) & 0x07f00000);
      return FromBits(bits) * Set(0x1p120f) * scale;
    }
  }

  template <int kRows, int kGroup>
  static void FloatSteps(const uint8_t* part, const FloatTable& table, const Header& header,
                         const float* x, Accumulators<kRows>& total) {
    constexpr int kBits = kTraits.code_bits;
    IntVec words[2];
    const uint8_t* plane = part + kLowPlane + kGroup % kBits * kPanelRows * 4;
    std::memcpy(words, plane, sizeof(words));
    auto step = [&]<int kColumn>() __attribute__((always_inline)) {
      constexpr int kShift = kBits * (kGroup / kBits) + 8 * kColumn;
      total.Step(FloatValue<kShift>(words[0], table, header.scale[0]),
                 FloatValue<kShift>(words[1], table, header.scale[1]), x + kColumn * kRows);
    };
    step.template operator()<0>();
    step.template operator()<1>();
    step.template operator()<2>();
    step.template operator()<3>();
    if constexpr (kGroup < 7) {
      FloatSteps<kRows, kGroup + 1>(part, table, header, x + 4 * kRows, total);
    }
  }

  template <int kRows>
  static void MultiplyFloats(const void* panel, const void* tile, int64_t cols, float* acc) {
    const auto* p = static_cast<const uint8_t*>(panel);
    const auto* x = static_cast<const float*>(tile);
    const FloatTable table = LoadFloatTable(kNf4Values);
    Accumulators<kRows> total;
    total.Start(acc);
    for (int64_t begin = 0; begin < cols; begin += kTraits.columns) {
      const Header header(p);
      p += kHeaderBytes;
      for (int part = 0; part < kParts; ++part, p += kPartBytes, x += kBlock * kRows) {
        PrefetchAhead(p, kPartBytes);
        FloatSteps<kRows, 0>(p, table, header, x, total);
      }
    }
    total.Save(acc);
  }

  template <int kRows>
  static void Multiply(const void* panel, const void* tile, int64_t cols, float* acc) {
    if constexpr (HasIntegerValues(kTraits)) {
      MultiplyIntegers<kRows>(panel, tile, cols, acc);
    } else {
      MultiplyFloats<kRows>(panel, tile, cols, acc);
    }
  }
};

template <int... kSizes>
struct TileSizes {};

template <BlockFormat kFormat, int... kSizes>
constexpr FormatKernels MakeBlockFormat(TileSizes<kSizes...>) {
  return MakeFormat<PanelOf<kFormat>, kSizes...>(
      HasIntegerValues(PanelOf<kFormat>::kTraits) ? TileKind::kInt8Halves : TileKind::kFloat);
}

template <int... kSizes>
constexpr TileKernels MakeHalvesTiles(TileSizes<kSizes...>) {
  return {sizeof...(kSizes), {kSizes...}, PrepareRoundedTile<HalvesTile>};
}

// In the order of BlockFormat. `floats` must be the sizes of the level's float tiles.
template <typename Ints, typename Floats>
constexpr BlockKernels MakeBlockKernels(Ints ints, Floats floats) {
  return {
      MakeHalvesTiles(ints),
      {MakeBlockFormat<BlockFormat::kQ4_1>(ints), MakeBlockFormat<BlockFormat::kQ5_0>(ints),
       MakeBlockFormat<BlockFormat::kQ5_1>(ints), MakeBlockFormat<BlockFormat::kQ2_K>(ints),
       MakeBlockFormat<BlockFormat::kQ3_K>(ints), MakeBlockFormat<BlockFormat::kQ4_K>(ints),
       MakeBlockFormat<BlockFormat::kQ5_K>(ints), MakeBlockFormat<BlockFormat::kQ6_K>(ints),
       MakeBlockFormat<BlockFormat::kIQ4_NL>(ints), MakeBlockFormat<BlockFormat::kIQ4_XS>(ints),
       MakeBlockFormat<BlockFormat::kMXFP4>(ints), MakeBlockFormat<BlockFormat::kInt4G32>(ints),
       MakeBlockFormat<BlockFormat::kInt4G64>(ints), MakeBlockFormat<BlockFormat::kInt4G128>(ints),
       MakeBlockFormat<BlockFormat::kInt8G32>(ints), MakeBlockFormat<BlockFormat::kInt8G128>(ints),
       MakeBlockFormat<BlockFormat::kF8G32>(floats), MakeBlockFormat<BlockFormat::kF8G128>(floats),
       MakeBlockFormat<BlockFormat::kNF4>(floats)}};
}

}  // namespace
}  // namespace heddle::kernels::cpu
