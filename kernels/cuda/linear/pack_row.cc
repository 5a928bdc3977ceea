#include "kernels/cuda/linear/pack_row.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <vector>

#include "kernels/block_codes.h"
#include "kernels/weight_sources.h"

namespace heddle::kernels::cuda {
namespace {

// A row split into parts: per column v(code) or the code itself, as the layout needs it; scales and
// offsets per sub-block of 16 or 32 columns.
struct RowCodes {
  std::vector<int16_t> codes;
  std::vector<float> scales;
  std::vector<float> offsets;
  float common = 0;  // the scale of all blocks, where sub-blocks have 8-bit floats; 0: they differ
};

// Reads Q8_0 and Q4_0 in the form of the other blocks.
void ReadPlainBlock(DType dtype, const uint8_t* block, BlockCodes* out) {
  uint16_t scale;
  std::memcpy(&scale, block, 2);
  out->scale = F16ToF32(scale);
  for (int k = 0; k < 32; ++k) {
    if (dtype == DType::kQ8_0) {
      out->codes[k] = block[2 + k];
    } else {
      out->codes[k] = (block[2 + k % 16] >> (k < 16 ? 0 : 4)) & 15;
    }
  }
}

constexpr BlockTraits kQ8Traits = {
    32, 32, 8, 0, CodeValues::kInt8, SubScales::kNone, false, false, ScaleType::kF16};
constexpr BlockTraits kQ4Traits = {
    32, 32, 4, 8, CodeValues::kLinear, SubScales::kNone, false, false, ScaleType::kF16};

BlockTraits TraitsFor(DType dtype) {
  if (dtype == DType::kQ8_0) return kQ8Traits;
  return dtype == DType::kQ4_0 ? kQ4Traits : Traits(*BlockFormatOf(dtype));
}

// The number that the layout stores for a code.
int16_t StoredCode(const BlockTraits& traits, WeightLayout layout, uint8_t code) {
  if (layout == WeightLayout::kF8 || TraitsOf(layout).code_bits == 4) return code;
  return static_cast<int16_t>(CodeValue(traits, code));
}

void AppendBlock(const BlockTraits& traits, const BlockCodes& block, WeightLayout layout,
                 RowCodes* row) {
  const int32_t columns = TraitsOf(layout).is_fine ? 16 : 32;
  const bool subs = traits.sub_scales != SubScales::kNone;
  // kInt4Offset stores nibbles unchanged: their bias goes into the offset.
  const int32_t bias = layout == WeightLayout::kInt4Offset ? traits.bias : 0;
  for (int32_t k = 0; k < traits.columns; ++k) {
    row->codes.push_back(StoredCode(traits, layout, block.codes[k]));
  }
  for (int32_t k = 0; k < traits.columns; k += columns) {
    const int32_t s = k / traits.sub_columns;
    const float scale = subs ? block.scale * SubScaleF32(traits, block.sub_scales[s]) : block.scale;
    float offset = 0;
    if (traits.has_offset) {
      offset = subs ? block.offset * static_cast<float>(block.sub_offsets[s]) : block.offset;
    }
    if (traits.has_zero) offset -= scale * static_cast<float>(block.zero);
    row->scales.push_back(scale);
    row->offsets.push_back(offset - scale * static_cast<float>(bias));
  }
}

RowCodes ReadRow(const WeightSource& source, const uint8_t* from, WeightLayout layout) {
  const BlockTraits traits = TraitsFor(source.dtype);
  const std::optional<BlockFormat> format = BlockFormatOf(source.dtype);
  const int64_t block_bytes = Info(source.dtype).block_bytes;
  RowCodes row;
  row.codes.reserve(static_cast<size_t>(source.cols));
  for (int64_t k = 0; k < source.cols; k += traits.columns, from += block_bytes) {
    BlockCodes block;
    if (format) {
      ReadBlock(*format, from, &block);
    } else {
      ReadPlainBlock(source.dtype, from, &block);
    }
    AppendBlock(traits, block, layout, &row);
    if (traits.sub_scales != SubScales::kE4m3) continue;
    row.common = k == 0 || block.scale == row.common ? block.scale : 0;
  }
  return row;
}

// The number that scales and offsets are divided by: what leaves 8-bit floats, which F16 can hold,
// or else a power of two; 1 if F16 can hold them as they are.
float FactorOf(const RowCodes& row) {
  if (std::isnormal(row.common)) return row.common;
  float largest = 0;
  bool exact = true;
  for (const std::vector<float>* numbers : {&row.scales, &row.offsets}) {
    for (const float number : *numbers) {
      largest = std::max(largest, std::fabs(number));
      exact = exact && F16ToF32(F32ToF16(number)) == number;
    }
  }
  if (exact || largest == 0 || !std::isfinite(largest)) return 1;
  int exponent;
  std::frexp(largest, &exponent);                          // largest < 2^exponent
  return std::ldexp(1.0f, std::max(exponent - 15, -126));  // F16 ends below 2^16
}

// The place of column k of the row: byte of `data`, and for 4-bit codes the bit within its word.
struct Place {
  int64_t byte;
  int32_t bit;
};
Place PlaceOf(WeightLayout layout, int64_t k) {
  const LayoutTraits traits = TraitsOf(layout);
  const int64_t block = k / 32;
  const auto within = static_cast<int32_t>(k % 32);
  const int32_t t = traits.is_fine ? within % 16 / 4 : within / 8;
  const int32_t e = traits.is_fine ? within / 16 * 4 + within % 4 : within % 8;
  const int64_t lane =
      block / traits.blocks() * 64 + 16 * t + block % traits.blocks() * (16 / traits.blocks());
  if (traits.code_bits == 8) return {lane + e, 0};
  const int32_t bit = HasTable(layout) ? 4 * e : 4 * (e / 2) + 16 * (e % 2);
  return {lane + bit / 8, bit % 8};
}

void PackCodes(const WeightSource& source, const uint8_t* from, const DeviceWeight& layout,
               uint8_t* data, uint16_t* scales, float* factor) {
  const RowCodes row = ReadRow(source, from, layout.layout);
  *factor = FactorOf(row);
  const bool nibbles = TraitsOf(layout.layout).code_bits == 4;
  for (int64_t k = 0; k < source.cols; ++k) {
    const Place place = PlaceOf(layout.layout, k);
    const int16_t code = row.codes[static_cast<size_t>(k)];
    const auto bits = static_cast<uint8_t>(nibbles ? (code & 15) << place.bit : code);
    data[place.byte] = static_cast<uint8_t>(data[place.byte] | bits);
  }
  for (size_t i = 0; i < row.scales.size(); ++i) {
    *scales++ = F32ToF16(row.scales[i] / *factor);
    if (TraitsOf(layout.layout).has_offset) *scales++ = F32ToF16(row.offsets[i] / *factor);
  }
}

void PackFloats(const WeightSource& source, const uint8_t* from, WeightLayout layout,
                uint8_t* data) {
  const bool as_it_is = source.column_order.empty() && LayoutOf(source.dtype) == layout;
  if (as_it_is) {
    std::memcpy(data, from, static_cast<size_t>(RowBytes(source.dtype, source.cols)));
    return;
  }
  std::vector<float> values(static_cast<size_t>(source.cols));
  DecodeSourceRow(source, from, values.data());
  if (layout == WeightLayout::kF32) {
    std::memcpy(data, values.data(), values.size() * sizeof(float));
    return;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t bits = F32ToBF16(values[i]);
    std::memcpy(data + 2 * i, &bits, 2);
  }
}

// The offset of codes in a block of a format with F32 scales and 8-bit codes; 0: another format.
int64_t CodesAt(DType dtype) {
  switch (dtype) {
    case DType::kF8G32:
    case DType::kF8G128:
      return 4;
    case DType::kInt8G32:
    case DType::kInt8G128:
      return 5;  // behind the zero point
    default:
      return 0;
  }
}

// Neighbouring columns of a lane stay together, 8 at a time.
void PackRowCodes(const WeightSource& source, const uint8_t* from, uint8_t* data) {
  const DTypeInfo& info = Info(source.dtype);
  for (int64_t k = 0; k < source.cols; k += info.block_elements, from += info.block_bytes) {
    const uint8_t* codes = from + CodesAt(source.dtype);
    for (int64_t c = k; c < k + info.block_elements; c += 8, codes += 8) {
      std::memcpy(data + PlaceOf(WeightLayout::kF8Row, c).byte, codes, 8);
    }
  }
}

bool IsInteger(WeightLayout layout) {
  return TraitsOf(layout).is_scaled() && !IsF8(layout) && !HasTable(layout);
}

}  // namespace

WeightLayout LayoutOf(DType dtype) {
  if (dtype == DType::kF16) return WeightLayout::kF16;
  if (dtype == DType::kBF16) return WeightLayout::kBF16;
  if (dtype == DType::kQ8_0) return WeightLayout::kInt8;
  if (dtype == DType::kQ4_0) return WeightLayout::kInt4;
  const std::optional<BlockFormat> format = BlockFormatOf(dtype);
  if (!format.has_value()) return WeightLayout::kF32;
  const BlockTraits& traits = Traits(*format);
  const bool offset = traits.has_offset || traits.has_zero;
  switch (traits.values) {
    case CodeValues::kE4m3:
      return WeightLayout::kF8;
    case CodeValues::kIq4:
    case CodeValues::kE2m1:
    case CodeValues::kNf4:
    case CodeValues::kFp4:
    case CodeValues::kIq1:
    case CodeValues::kIq2:
    case CodeValues::kIq3Xxs:
    case CodeValues::kIq3S:
      return traits.sub_columns == 16 ? WeightLayout::kTable4Fine : WeightLayout::kTable4;
    case CodeValues::kLinear:
      // The codes less the bias are a table, too.
      if (traits.sub_columns == 16 && traits.code_bits <= 4 && !offset) {
        return WeightLayout::kTable4Fine;
      }
      break;
    case CodeValues::kInt8:
      break;
  }
  if (traits.code_bits == 4 && offset) return WeightLayout::kInt4Offset;
  if (traits.sub_columns == 16) {
    return offset ? WeightLayout::kInt8FineOffset : WeightLayout::kInt8Fine;
  }
  return offset ? WeightLayout::kInt8Offset : WeightLayout::kInt8;
}

WeightLayout LayoutOfIntegers(DType dtype) {
  const std::optional<BlockFormat> format = BlockFormatOf(dtype);
  if (!format.has_value()) return WeightLayout::kF32;
  const BlockTraits& traits = Traits(*format);
  if (traits.values != CodeValues::kLinear && IntTable(traits.values) == nullptr) {
    return WeightLayout::kF32;
  }
  return traits.sub_columns == 16 ? WeightLayout::kInt8Fine : WeightLayout::kInt8;
}

WeightLayout Join(WeightLayout a, WeightLayout b) {
  if (a == b) return a;
  if (!IsInteger(a) || !IsInteger(b)) return WeightLayout::kF32;
  const bool offset = TraitsOf(a).has_offset || TraitsOf(b).has_offset;
  if (TraitsOf(a).code_bits == 4 && TraitsOf(b).code_bits == 4) return WeightLayout::kInt4Offset;
  if (TraitsOf(a).is_fine || TraitsOf(b).is_fine) {
    return offset ? WeightLayout::kInt8FineOffset : WeightLayout::kInt8Fine;
  }
  return offset ? WeightLayout::kInt8Offset : WeightLayout::kInt8;
}

void SetTable(DType dtype, DeviceWeight* weight) {
  const BlockTraits& traits = Traits(*BlockFormatOf(dtype));
  for (uint32_t code = 0; code < 16; ++code) {
    const uint16_t bits = F32ToBF16(CodeValueF32(traits, static_cast<uint8_t>(code), 0));
    weight->table_low[code / 4] |= (bits & 255u) << (8 * (code % 4));
    weight->table_high[code / 4] |= static_cast<uint32_t>(bits >> 8) << (8 * (code % 4));
  }
}

std::optional<WeightLayout> PerRowLayout(WeightLayout layout) {
  if (layout == WeightLayout::kF8) return WeightLayout::kF8Row;
  // Q5_1 and other formats with offsets need it too: HasOneScale distinguishes them.
  if (layout == WeightLayout::kInt8Offset) return WeightLayout::kInt8Row;
  return std::nullopt;
}

bool HasOneScale(const WeightSource& source, const uint8_t* row) {
  const int64_t codes_at = CodesAt(source.dtype);
  if (codes_at == 0) return false;
  const DTypeInfo& info = Info(source.dtype);
  for (int64_t k = 0, at = 0; k < source.cols; k += info.block_elements, at += info.block_bytes) {
    if (std::memcmp(row + at, row, 4) != 0 || (codes_at == 5 && row[at + 4] != 0)) return false;
  }
  return true;
}

std::optional<WeightLayout> TiledLayout(WeightLayout layout) {
  return layout == WeightLayout::kF8 ? std::optional(WeightLayout::kF8Block) : std::nullopt;
}

bool HasScalesOf(const WeightSource& source, const uint8_t* row, const uint8_t* first) {
  const DTypeInfo& info = Info(source.dtype);
  for (int64_t k = 0; k < source.cols; k += info.block_elements) {
    const int64_t block = k / info.block_elements;
    const int64_t first_block = k / kScaleTile * kScaleTile / info.block_elements;
    if (std::memcmp(row + block * info.block_bytes, first + first_block * info.block_bytes, 4) != 0)
      return false;
  }
  return true;
}

void PackTileScales(const WeightSource& source, const uint8_t* row, float* to) {
  const DTypeInfo& info = Info(source.dtype);
  for (int64_t k = 0; k < source.cols; k += kScaleTile) {
    std::memcpy(to++, row + k / info.block_elements * info.block_bytes, 4);
  }
}

void PackRow(const WeightSource& source, const uint8_t* from, const DeviceWeight& layout,
             uint8_t* data, uint16_t* scales, float* factor) {
  *factor = 1;
  if (TraitsOf(layout.layout).is_tiled) {
    PackRowCodes(source, from, data);
  } else if (TraitsOf(layout.layout).is_per_row) {
    std::memcpy(factor, from, sizeof(*factor));
    PackRowCodes(source, from, data);
  } else if (TraitsOf(layout.layout).is_scaled()) {
    PackCodes(source, from, layout, data, scales, factor);
  } else {
    PackFloats(source, from, layout.layout, data);
  }
}

}  // namespace heddle::kernels::cuda
