// The layouts of packed matrices on the device, as data: kernels are instantiated by layout, and
// packing and planning read the same table. Includes neither CUDA nor Abseil.
//
// Rows are contiguous and start at 16-byte boundaries.
//   kF32           as on disk
//   kF16, kBF16    padded with zeros to a multiple of 32 columns
//   all others     codes and scales apart, each padded to whole groups of columns: 64 of 8-bit
//                  codes, 128 of 4-bit ones. Within a group lane t = 0..3 of a matrix fragment
//                  finds 16 bytes at 16 t: for each block of 32 columns 8 codes, those of columns
//                  8t .. 8t + 7; or, where scales are per 16 columns, of 4t .. 4t + 3 and 16 + 4t
//                  .. 16 + 4t + 3. 4-bit codes: one word per block; pair p of the 8 has its first
//                  nibble at bit 4p, its second at bit 4p + 16; where a table has the values code e
//                  is at bit 4e.
// value = row_factor * (scale * v(code) + offset), scale and offset F16, one for every 16 or 32
// columns (an offset follows its scale): [rows, scales_stride]. The factor is a power of two that
// brings the row's scales into F16's range; files whose scales are F16 keep them bit for bit, and
// factors of 1. NVFP4's factor is its tensor's scale, which leaves the scales of its files.
// kInt8Row and kF8Row have no scales: the factor is the row's scale itself. kF8Block has neither,
// but an F32 scale for every 128 rows and columns.
// v(code) is exact in BF16 (but for NF4 and FP4, whose tables are rounded to it).
// A library that does not know the order of columns within a group can still multiply: a product
// does not depend on it if x has the same order (quantize.cu).
#pragma once

#include <cstdint>

namespace heddle::kernels::cuda {

enum class WeightLayout : uint8_t {
  kF32,
  kF16,  // with F32 activations only
  kBF16,
  kInt8,            // code is a signed byte; Q8_0, Q5_0
  kInt8Offset,      // Q5_1, Q5_K, 8-bit groups with zero points
  kInt8Fine,        // scales per 16 columns; Q6_K, and stacks of several formats
  kInt8FineOffset,  // Q2_K, and stacks of several integer formats
  kInt8Row,         // one scale for a row and no zero points: 8-bit integers per channel
  kF8,              // E4M3; FP8 with scales of groups
  kF8Row,           // one scale for a row: FP8 with scales of tensors or channels
  kF8Block,         // one scale for 128 rows and columns, as DeepSeek-V3 has them
  kInt4,            // nibble - 8; Q4_0
  kInt4Offset,      // nibble; Q4_1, Q4_K, 4-bit groups with zero points
  kTable4,          // one of 16 numbers; IQ3, IQ4, MXFP4, NF4, FP4
  kTable4Fine,      // the same with scales per 16 columns; NVFP4, Q3_K, IQ1, IQ2
};

// Rows, and columns, that share a scale in kF8Block: two groups of columns.
inline constexpr int64_t kScaleTile = 128;

struct LayoutTraits {
  int32_t code_bits;  // per column; 32 and 16: a float
  bool has_offset;
  bool is_fine;             // scales per 16 columns
  bool is_per_row = false;  // no scales except the rows' factors
  bool is_tiled = false;    // scales of kScaleTile rows and columns

  constexpr bool is_coded() const { return code_bits <= 8; }
  constexpr bool is_scaled() const { return is_coded() && !is_per_row; }
  constexpr int32_t blocks() const {  // of 32 columns in a group
    return code_bits == 4 ? 4 : code_bits == 8 ? 2 : 1;
  }
  constexpr int32_t subs() const { return is_fine ? 2 : 1; }  // scales of a block
  // F16 numbers per block of 32 columns.
  constexpr int32_t entries() const {
    return is_scaled() && !is_tiled ? subs() * (has_offset ? 2 : 1) : 0;
  }
};

constexpr LayoutTraits TraitsOf(WeightLayout layout) {
  switch (layout) {
    case WeightLayout::kF32:
      return {32, false, false};
    case WeightLayout::kF16:
    case WeightLayout::kBF16:
      return {16, false, false};
    case WeightLayout::kInt8Offset:
      return {8, true, false};
    case WeightLayout::kInt8Fine:
      return {8, false, true};
    case WeightLayout::kInt8FineOffset:
      return {8, true, true};
    case WeightLayout::kInt4:
    case WeightLayout::kTable4:
      return {4, false, false};
    case WeightLayout::kTable4Fine:
      return {4, false, true};
    case WeightLayout::kInt4Offset:
      return {4, true, false};
    case WeightLayout::kInt8Row:
    case WeightLayout::kF8Row:
      return {8, false, false, true};
    case WeightLayout::kF8Block:
      return {8, false, false, false, true};
    default:
      return {8, false, false};
  }
}

// Whether codes name one of DeviceWeight's 16 numbers.
constexpr bool HasTable(WeightLayout layout) {
  return layout == WeightLayout::kTable4 || layout == WeightLayout::kTable4Fine;
}

constexpr bool IsF8(WeightLayout layout) {
  return layout == WeightLayout::kF8 || layout == WeightLayout::kF8Row ||
         layout == WeightLayout::kF8Block;
}

// A packed matrix in device memory.
struct DeviceWeight {
  const uint8_t* data = nullptr;
  const uint16_t* scales = nullptr;    // F16, see above
  const float* row_factors = nullptr;  // [rows]; nullptr: ones
  // kF8Block: [rows / kScaleTile, tiles_stride], the numbers of a row of tiles side by side, both
  // rounded up. The stride is a multiple of 4 and the start of 16 bytes, as cuBLASLt wants them.
  const float* tile_scales = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t row_bytes = 0;
  int64_t scales_stride = 0;  // a multiple of 8, so that the scales of a group are one load
  int64_t tiles_stride = 0;
  WeightLayout layout = WeightLayout::kF32;
  bool takes_int8_x = false;  // kInt8Row: WeightSource::takes_int8_x
  // HasTable: the low and the high bytes of 16 BF16 numbers, four to a word.
  uint32_t table_low[4] = {};
  uint32_t table_high[4] = {};

  // The scales of the tiles that contain row r; kF8Block.
  constexpr const float* tiles_of(int64_t r) const {
    return tile_scales + r / kScaleTile * tiles_stride;
  }
};

// Shape and strides of a packed matrix; no pointers.
constexpr DeviceWeight PackedLayout(WeightLayout layout, int64_t rows, int64_t cols) {
  const LayoutTraits traits = TraitsOf(layout);
  DeviceWeight weight;
  weight.rows = rows;
  weight.cols = cols;
  weight.layout = layout;
  if (layout == WeightLayout::kF32) {
    weight.row_bytes = (cols * 4 + 15) / 16 * 16;
    return weight;
  }
  const int64_t columns = 32 * int64_t{traits.blocks()};
  const int64_t groups = (cols + columns - 1) / columns;
  weight.row_bytes = groups * 64;
  weight.scales_stride = (groups * traits.blocks() * traits.entries() + 7) / 8 * 8;
  if (traits.is_tiled) weight.tiles_stride = ((cols + kScaleTile - 1) / kScaleTile + 3) / 4 * 4;
  return weight;
}

}  // namespace heddle::kernels::cuda
