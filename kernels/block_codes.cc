#include "kernels/block_codes.h"

#include <bit>
#include <cstring>

#include "base/check.h"

namespace heddle::kernels {
namespace {

static_assert(kFirstBlockFormat == static_cast<int32_t>(DType::kQ4_1));
static_assert(kFirstBlockFormat + static_cast<int32_t>(BlockFormat::kMXFP4) ==
              static_cast<int32_t>(DType::kMXFP4));
static_assert(kFirstBlockFormat + static_cast<int32_t>(BlockFormat::kTQ2_0) ==
              static_cast<int32_t>(DType::kTQ2_0));
static_assert(kFirstBlockFormat + static_cast<int32_t>(BlockFormat::kFP4) ==
              static_cast<int32_t>(DType::kFP4));
static_assert(kFirstBlockFormat + static_cast<int32_t>(BlockFormat::kIQ3S) ==
              static_cast<int32_t>(DType::kIQ3S));
static_assert(kFirstBlockFormat + kNumBlockFormats == kNumDTypes);

float HalfAt(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, 2);
  return F16ToF32(bits);
}

// Reads 32 codes from 16 bytes: low nibbles first.
void ReadNibbles(const uint8_t* bytes, uint8_t* codes) {
  for (int j = 0; j < 16; ++j) {
    codes[j] = bytes[j] & 15;
    codes[j + 16] = bytes[j] >> 4;
  }
}

// Adds bit 4 of each code: bit j of `bits` belongs to code j.
void AddFifthBits(const uint8_t* bits, uint8_t* codes) {
  for (int j = 0; j < 32; ++j) {
    codes[j] |= static_cast<uint8_t>(((bits[j / 8] >> (j % 8)) & 1) << 4);
  }
}

void ReadQ4_1(const uint8_t* b, BlockCodes* out) {
  out->scale = HalfAt(b);
  out->offset = HalfAt(b + 2);
  ReadNibbles(b + 4, out->codes);
}

void ReadQ5_0(const uint8_t* b, BlockCodes* out) {
  out->scale = HalfAt(b);
  ReadNibbles(b + 6, out->codes);
  AddFifthBits(b + 2, out->codes);
}

void ReadQ5_1(const uint8_t* b, BlockCodes* out) {
  out->scale = HalfAt(b);
  out->offset = HalfAt(b + 2);
  ReadNibbles(b + 8, out->codes);
  AddFifthBits(b + 4, out->codes);
}

// Reads 256 codes of two bits: byte l of each 32 holds columns l, 32 + l, 64 + l, 96 + l of 128.
void ReadTwoBits(const uint8_t* bytes, uint8_t* codes) {
  for (int run = 0; run < 8; ++run) {
    const uint8_t* from = bytes + run / 4 * 32;
    const int shift = run % 4 * 2;
    for (int l = 0; l < 32; ++l) codes[run * 32 + l] = (from[l] >> shift) & 3;
  }
}

// Adds bit `place` of 256 codes: bit r of byte l belongs to code 32 r + l.
void AddHighBits(const uint8_t* bits, int place, uint8_t* codes) {
  for (int run = 0; run < 8; ++run) {
    for (int l = 0; l < 32; ++l) {
      codes[run * 32 + l] |= static_cast<uint8_t>(((bits[l] >> run) & 1) << place);
    }
  }
}

void ReadQ2_K(const uint8_t* b, BlockCodes* out) {
  for (int s = 0; s < 16; ++s) {
    out->sub_scales[s] = static_cast<int8_t>(b[s] & 15);
    out->sub_offsets[s] = b[s] >> 4;
  }
  ReadTwoBits(b + 16, out->codes);
  out->scale = HalfAt(b + 80);
  out->offset = -HalfAt(b + 82);
}

void ReadTQ2_0(const uint8_t* b, BlockCodes* out) {
  ReadTwoBits(b, out->codes);
  out->scale = HalfAt(b + 64);
}

void ReadQ3_K(const uint8_t* b, BlockCodes* out) {
  const uint8_t* scales = b + 96;
  ReadTwoBits(b + 32, out->codes);
  AddHighBits(b, 2, out->codes);
  for (int s = 0; s < 16; ++s) {
    int low = s < 8 ? scales[s] & 15 : scales[s - 8] >> 4;
    int high = (scales[8 + s % 4] >> (s / 4 * 2)) & 3;
    out->sub_scales[s] = static_cast<int8_t>((low | high << 4) - 32);
  }
  out->scale = HalfAt(b + 108);
}

// Reads eight 6-bit scales and minima from 12 bytes.
void ReadScalesAndMinima(const uint8_t* p, BlockCodes* out) {
  for (int s = 0; s < 4; ++s) {
    out->sub_scales[s] = static_cast<int8_t>(p[s] & 63);
    out->sub_offsets[s] = p[4 + s] & 63;
    out->sub_scales[4 + s] = static_cast<int8_t>((p[8 + s] & 15) | ((p[s] >> 2) & 0x30));
    out->sub_offsets[4 + s] = static_cast<uint8_t>((p[8 + s] >> 4) | ((p[4 + s] >> 2) & 0x30));
  }
}

// Reads 256 codes of four bits: byte l of each 32 holds columns l and 32 + l of 64.
void ReadHalves(const uint8_t* bytes, uint8_t* codes) {
  for (int run = 0; run < 8; ++run) {
    const uint8_t* from = bytes + run / 2 * 32;
    const int shift = run % 2 * 4;
    for (int l = 0; l < 32; ++l) codes[run * 32 + l] = (from[l] >> shift) & 15;
  }
}

void ReadQ4_K(const uint8_t* b, BlockCodes* out) {
  out->scale = HalfAt(b);
  out->offset = -HalfAt(b + 2);
  ReadScalesAndMinima(b + 4, out);
  ReadHalves(b + 16, out->codes);
}

void ReadQ5_K(const uint8_t* b, BlockCodes* out) {
  out->scale = HalfAt(b);
  out->offset = -HalfAt(b + 2);
  ReadScalesAndMinima(b + 4, out);
  ReadHalves(b + 48, out->codes);
  AddHighBits(b + 16, 4, out->codes);
}

void ReadQ6_K(const uint8_t* b, BlockCodes* out) {
  // For each 128 columns: 64 bytes of low nibbles (columns 0 to 63 in the lower ones), 32 of pairs.
  for (int run = 0; run < 8; ++run) {
    const uint8_t* low = b + run / 4 * 64 + run % 2 * 32;
    const uint8_t* high = b + 128 + run / 4 * 32;
    const int low_shift = run / 2 % 2 * 4;
    const int high_shift = run % 4 * 2;
    for (int l = 0; l < 32; ++l) {
      const int pair = (high[l] >> high_shift) & 3;
      out->codes[run * 32 + l] = static_cast<uint8_t>(((low[l] >> low_shift) & 15) | pair << 4);
    }
  }
  std::memcpy(out->sub_scales, b + 192, 16);
  out->scale = HalfAt(b + 208);
}

void ReadIQ4_NL(const uint8_t* b, BlockCodes* out) {
  out->scale = HalfAt(b);
  ReadNibbles(b + 2, out->codes);
}

void ReadIQ4_XS(const uint8_t* b, BlockCodes* out) {
  out->scale = HalfAt(b);
  for (int s = 0; s < 8; ++s) {
    int low = (b[4 + s / 2] >> (s % 2 * 4)) & 15;
    int high = (b[2 + s / 4] >> (s % 4 * 2)) & 3;
    out->sub_scales[s] = static_cast<int8_t>((low | high << 4) - 32);
    ReadNibbles(b + 8 + s * 16, out->codes + s * 32);
  }
}

// The scale is half of 2^(e - 127), since the table holds doubled values: subnormal for e < 2.
void ReadMXFP4(const uint8_t* b, BlockCodes* out) {
  uint32_t bits = b[0] < 2 ? 0x00200000u << b[0] : static_cast<uint32_t>(b[0] - 1) << 23;
  out->scale = std::bit_cast<float>(bits);
  ReadNibbles(b + 1, out->codes);
}

template <int kColumns>
void ReadInt4(const uint8_t* b, BlockCodes* out) {
  std::memcpy(&out->scale, b, 4);
  out->zero = static_cast<int8_t>(b[4]);
  for (int k = 0; k < kColumns; k += 32) ReadNibbles(b + 5 + k / 2, out->codes + k);
}

template <int kColumns>
void ReadInt8(const uint8_t* b, BlockCodes* out) {
  std::memcpy(&out->scale, b, 4);
  out->zero = static_cast<int8_t>(b[4]);
  std::memcpy(out->codes, b + 5, kColumns);
}

template <int kColumns>
void ReadF8(const uint8_t* b, BlockCodes* out) {
  std::memcpy(&out->scale, b, 4);
  std::memcpy(out->codes, b + 4, kColumns);
}

void ReadNF4(const uint8_t* b, BlockCodes* out) {
  std::memcpy(&out->scale, b, 4);
  ReadNibbles(b + 4, out->codes);
  ReadNibbles(b + 20, out->codes + 32);
}

// The table holds doubled values, so the scale is halved.
void ReadNVFP4(const uint8_t* b, BlockCodes* out) {
  std::memcpy(&out->scale, b, 4);
  out->scale *= 0.5f;
  std::memcpy(out->sub_scales, b + 4, 4);
  ReadNibbles(b + 8, out->codes);
  ReadNibbles(b + 24, out->codes + 32);
}

void ReadThreeBitTable(const uint8_t* b, BlockCodes* out) {
  std::memcpy(&out->scale, b, 4);
  std::memcpy(out->sub_scales, b + 4, 16);
  ReadTwoBits(b + 20, out->codes);
  AddHighBits(b + 84, 2, out->codes);
}

void ReadFourBitTable(const uint8_t* b, BlockCodes* out) {
  std::memcpy(&out->scale, b, 4);
  std::memcpy(out->sub_scales, b + 4, 8);
  for (int s = 0; s < 8; ++s) ReadNibbles(b + 12 + s * 16, out->codes + s * 32);
}

// The format is a sign, 4 bits of exponent with bias 7 and 3 bits of mantissa; all exponent and
// mantissa bits set mean NaN.
float E4m3ToF32(uint8_t code) {
  if ((code & 0x7f) == 0x7f) return std::bit_cast<float>(0x7fc00000u);
  uint32_t bits = static_cast<uint32_t>(code & 0x80) << 24 | static_cast<uint32_t>(code & 0x7f)
                                                                 << 20;
  return std::bit_cast<float>(bits) * 0x1p120f;  // shifts the exponent's bias, also for subnormals
}

using Reader = void (*)(const uint8_t* block, BlockCodes* out);
constexpr Reader kReaders[kNumBlockFormats] = {
    ReadQ4_1,         ReadQ5_0,     ReadQ5_1,          ReadQ2_K,          ReadQ3_K,
    ReadQ4_K,         ReadQ5_K,     ReadQ6_K,          ReadIQ4_NL,        ReadIQ4_XS,
    ReadMXFP4,        ReadInt4<32>, ReadInt4<64>,      ReadInt4<128>,     ReadInt8<32>,
    ReadInt8<128>,    ReadF8<32>,   ReadF8<128>,       ReadNF4,           ReadTQ2_0,
    ReadNVFP4,        ReadNF4,      ReadThreeBitTable, ReadThreeBitTable, ReadFourBitTable,
    ReadFourBitTable,
};

}  // namespace

std::optional<BlockFormat> BlockFormatOf(DType dtype) {
  int32_t index = static_cast<int32_t>(dtype) - kFirstBlockFormat;
  if (index < 0 || index >= kNumBlockFormats) return std::nullopt;
  return static_cast<BlockFormat>(index);
}

void ReadBlock(BlockFormat format, const uint8_t* block, BlockCodes* out) {
  kReaders[static_cast<int32_t>(format)](block, out);
}

int32_t CodeValue(const BlockTraits& traits, uint8_t code) {
  switch (traits.values) {
    case CodeValues::kLinear:
      return code - traits.bias;
    case CodeValues::kInt8:
      return static_cast<int8_t>(code);
    default:
      HEDDLE_CHECK(IntTable(traits.values) != nullptr, "values are no integers");
      return IntTable(traits.values)[code];
  }
}

float CodeValueF32(const BlockTraits& traits, uint8_t code, int8_t zero) {
  if (traits.values == CodeValues::kE4m3) return E4m3ToF32(code);
  if (traits.values == CodeValues::kNf4) return kNf4Values[code];
  if (traits.values == CodeValues::kFp4) return kFp4Values[code];
  return static_cast<float>(CodeValue(traits, code) - zero);
}

float SubScaleF32(const BlockTraits& traits, int8_t stored) {
  if (traits.sub_scales == SubScales::kE4m3) return E4m3ToF32(static_cast<uint8_t>(stored));
  return static_cast<float>(stored);
}

void DequantizeBlocks(DType dtype, const uint8_t* row, int64_t cols, float* out) {
  std::optional<BlockFormat> format = BlockFormatOf(dtype);
  HEDDLE_CHECK(format.has_value(), "not a blocked format");
  const BlockTraits& traits = Traits(*format);
  const bool subs = traits.sub_scales != SubScales::kNone;
  const int64_t block_bytes = Info(dtype).block_bytes;
  for (int64_t begin = 0; begin < cols; begin += traits.columns, row += block_bytes) {
    BlockCodes block;
    ReadBlock(*format, row, &block);
    for (int32_t k = 0; k < traits.columns; ++k) {
      int32_t s = k / traits.sub_columns;
      float scale = subs ? block.scale * SubScaleF32(traits, block.sub_scales[s]) : block.scale;
      float value = scale * CodeValueF32(traits, block.codes[k], block.zero);
      if (traits.has_offset) {
        value += subs ? block.offset * static_cast<float>(block.sub_offsets[s]) : block.offset;
      }
      out[begin + k] = value;
    }
  }
}

}  // namespace heddle::kernels
