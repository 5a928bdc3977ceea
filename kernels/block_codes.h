// Splits one block of a blocked format into its parts, which DequantizeRow combines and backends
// repack into their own layouts.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/block_format.h"
#include "kernels/dtype.h"

namespace heddle::kernels {

constexpr int32_t kMaxBlockColumns = 256;
constexpr int32_t kMaxSubBlocks = 16;

// block_format.h says how the parts make values.
struct BlockCodes {
  float scale = 0;  // of the type in the traits
  float offset = 0;
  int8_t zero = 0;
  int8_t sub_scales[kMaxSubBlocks];  // kE4m3: the bits of the float
  uint8_t sub_offsets[kMaxSubBlocks];
  uint8_t codes[kMaxBlockColumns];
};

// nullopt for F32, F16, BF16, Q8_0 and Q4_0, which every backend handles separately.
std::optional<BlockFormat> BlockFormatOf(DType dtype);

inline const BlockTraits& Traits(BlockFormat format) {
  return kBlockTraits[static_cast<int32_t>(format)];
}

// `block` holds Info(dtype).block_bytes, at any alignment. Fills the parts that the format has.
void ReadBlock(BlockFormat format, const uint8_t* block, BlockCodes* out);

// v(c) of block_format.h. REQUIRES: integer values, which E4M3, NF4 and FP4 do not have.
int32_t CodeValue(const BlockTraits& traits, uint8_t code);

// v(c) - zero for all formats.
float CodeValueF32(const BlockTraits& traits, uint8_t code, int8_t zero);

// The number that an element of BlockCodes::sub_scales stands for. REQUIRES: the format has them.
float SubScaleF32(const BlockTraits& traits, int8_t stored);

// REQUIRES: BlockFormatOf(dtype), cols in whole blocks.
void DequantizeBlocks(DType dtype, const uint8_t* row, int64_t cols, float* out);

}  // namespace heddle::kernels
