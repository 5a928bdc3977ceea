// One block of a blocked format, taken apart: what DequantizeRow multiplies out, and what backends
// repack into layouts of their own.
#pragma once

#include <cstdint>
#include <optional>

#include "kernels/block_format.h"
#include "kernels/dtype.h"

namespace heddle::kernels {

constexpr int32_t kMaxBlockColumns = 256;
constexpr int32_t kMaxSubBlocks = 16;

// See block_format.h for how the parts make values.
struct BlockCodes {
  float scale = 0;  // of the type that the traits say
  float offset = 0;
  int8_t zero = 0;
  int8_t sub_scales[kMaxSubBlocks];
  uint8_t sub_offsets[kMaxSubBlocks];
  uint8_t codes[kMaxBlockColumns];
};

// nullopt for F32, F16, BF16, Q8_0 and Q4_0, which every backend handles by itself.
std::optional<BlockFormat> BlockFormatOf(DType dtype);

inline const BlockTraits& Traits(BlockFormat format) {
  return kBlockTraits[static_cast<int32_t>(format)];
}

// `block` holds Info(dtype).block_bytes, at any alignment. Fills what the format has.
void ReadBlock(BlockFormat format, const uint8_t* block, BlockCodes* out);

// v(c) of block_format.h. REQUIRES: values that are integers: neither E4M3 nor NF4.
int32_t CodeValue(const BlockTraits& traits, uint8_t code);

// v(c) - zero for all formats.
float CodeValueF32(const BlockTraits& traits, uint8_t code, int8_t zero);

// REQUIRES: BlockFormatOf(dtype), cols in whole blocks.
void DequantizeBlocks(DType dtype, const uint8_t* row, int64_t cols, float* out);

}  // namespace heddle::kernels
