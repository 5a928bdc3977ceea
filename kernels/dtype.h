// Element types of tensors, on disk and in memory, and their storage arithmetic.
// Sources: IEEE 754 (F32, F16); bfloat16; ggml block formats as documented with GGUF v3.
#pragma once

#include <cstdint>
#include <string_view>

namespace heddle::kernels {

// Values are stable: they may be written to profiles, never renumber.
enum class DType : uint8_t {
  kF32 = 0,
  kF16 = 1,
  kBF16 = 2,
  kQ8_0 = 3,  // blocks of 32: F16 scale d, 32 x int8 q; value = d * q. 34 bytes.
  kQ4_0 = 4,  // blocks of 32: F16 scale d, 16 bytes; byte j holds elements j (low nibble) and
              // j + 16 (high nibble); value = d * (nibble - 8). 18 bytes.
};

struct DTypeInfo {
  std::string_view name;
  int32_t block_elements;  // rows are stored in whole blocks
  int32_t block_bytes;
};

const DTypeInfo& Info(DType dtype);

// Bytes of one row of `cols` elements. REQUIRES: cols is a multiple of block_elements.
int64_t RowBytes(DType dtype, int64_t cols);

// Scalar conversions, round to nearest even; NaN stays NaN. The reference for all others.
float F16ToF32(uint16_t bits);
uint16_t F32ToF16(float value);
float BF16ToF32(uint16_t bits);
uint16_t F32ToBF16(float value);

// Decodes one row of `cols` elements to float: the definition of each format.
void DequantizeRow(DType dtype, const void* row, int64_t cols, float* out);

}  // namespace heddle::kernels
