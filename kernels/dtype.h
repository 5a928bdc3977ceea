// Element types of tensors, on disk and in memory, and their storage arithmetic.
// Sources: IEEE 754 (F32, F16); bfloat16; ggml block formats as documented with GGUF v3.
#pragma once

#include <cstdint>
#include <string_view>

namespace heddle::kernels {

// The values are stable, because profiles may contain them: never renumber.
enum class DType : uint8_t {
  kF32 = 0,
  kF16 = 1,
  kBF16 = 2,
  // Only for KV caches (kv_cache.h), numbered apart from the formats of weights.
  kInt8 = 64,    // -127 to 127, times a separate scale
  kF8E4M3 = 65,  // OCP 8-bit float: 4 bits of exponent, no infinities, largest 448
  kQ8_0 = 3,     // blocks of 32: F16 scale d, 32 x int8 q; value = d * q. 34 bytes.
  kQ4_0 = 4,     // blocks of 32: F16 scale d, 16 bytes; byte j holds elements j (low nibble) and
                 // j + 16 (high nibble); value = d * (nibble - 8). 18 bytes.
  // Further blocked formats of GGUF; block_format.h has their parts, block_codes.cc their bytes.
  kQ4_1 = 5,     // blocks of 32: F16 d and m; value = d * q + m
  kQ5_0 = 6,     // blocks of 32: F16 d; value = d * (q - 16)
  kQ5_1 = 7,     // blocks of 32: F16 d and m; value = d * q + m
  kQ2_K = 8,     // the K formats: blocks of 256, F16 d, in each of them 8 or 16 small integer
  kQ3_K = 9,     // scales s, in some also minima m with their own F16 e;
  kQ4_K = 10,    // value = d * s * q - e * m
  kQ5_K = 11,    //
  kQ6_K = 12,    //
  kIQ4_NL = 13,  // blocks of 32: F16 d; value = d * (one of 16 fixed integers)
  kIQ4_XS = 14,  // blocks of 256: as IQ4_NL with small integer scales per 32
  kMXFP4 = 15,   // blocks of 32: a power of two and 4-bit floats (OCP Microscaling 1.0)
  // Made from Hugging Face's quantised checkpoints (engine/files/quantized); no file has them as
  // such. Blocks of G columns: F32 scale, int8 zero point (formats with one), codes.
  kInt4G32 = 16,  // value = scale * (nibble - zero); nibbles per 32 columns as in Q4_0
  kInt4G64 = 17,
  kInt4G128 = 18,
  kInt8G32 = 19,  // value = scale * (int8 - zero)
  kInt8G128 = 20,
  kF8G32 = 21,  // value = scale * E4M3
  kF8G128 = 22,
  kNF4 = 23,    // blocks of 64: value = scale * (one of 16 fixed numbers), nibbles as in Q4_0
  kTQ2_0 = 24,  // GGUF again: blocks of 256, F16 d; value = d * (q - 1), two bits a code
  // Made from checkpoints again.
  kNVFP4 = 25,  // blocks of 64: F32 scale, four E4M3 scales of 16 columns each, 4-bit floats;
                // value = scale * E4M3 * E2M1, nibbles per 32 columns as in Q4_0
  kFP4 = 26,    // as NF4 with other numbers
  // Made from GGUF's formats with grids. Blocks of 256: F32 d, int8 scales s of 16 (IQ1, IQ2) or 32
  // columns each, then codes as in Q3_K (low bits, high bits) or, of 32 columns each, as in Q4_0;
  // value = d * s * (one of 6 or 16 fixed integers).
  kIQ1 = 27,
  kIQ2 = 28,
  kIQ3XXS = 29,
  kIQ3S = 30,
};

constexpr int32_t kNumDTypes = 31;

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

// Decodes one row of `cols` elements to float: this defines each format except kInt8 and kF8E4M3.
// Values of GGUF's formats equal, to the bit, those of the dequantiser in the `gguf` Python
// package.
void DequantizeRow(DType dtype, const void* row, int64_t cols, float* out);

}  // namespace heddle::kernels
