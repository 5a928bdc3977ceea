#include "kernels/dtype.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "catch2/catch.hpp"

namespace heddle::kernels {
namespace {

TEST_CASE("F16 decodes the values that IEEE 754 names", "[kernels][unit]") {
  CHECK(F16ToF32(0x3c00) == 1.0f);
  CHECK(F16ToF32(0xc000) == -2.0f);
  CHECK(F16ToF32(0x7bff) == 65504.0f);
  CHECK(F16ToF32(0x0400) == 0x1p-14f);
  CHECK(F16ToF32(0x0001) == 0x1p-24f);
  CHECK(F16ToF32(0x7c00) == std::numeric_limits<float>::infinity());
  CHECK(std::signbit(F16ToF32(0x8000)));
  CHECK(std::isnan(F16ToF32(0x7e00)));
}

TEST_CASE("Every F16 number survives the way through F32", "[kernels][unit]") {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    auto half = static_cast<uint16_t>(bits);
    if (std::isnan(F16ToF32(half))) {
      CHECK(std::isnan(F16ToF32(F32ToF16(F16ToF32(half)))));
    } else if (F32ToF16(F16ToF32(half)) != half) {
      FAIL("F16 " << bits);
    }
  }
}

TEST_CASE("F32 to F16 agrees with the compiler's _Float16 between and beyond all numbers",
          "[kernels][unit]") {
#ifdef __FLT16_MAX__
  for (uint32_t bits = 0; bits < 0x7f800000; bits += 997) {
    float value = std::bit_cast<float>(bits);
    auto expected = static_cast<_Float16>(value);
    if (F32ToF16(value) != std::bit_cast<uint16_t>(expected)) FAIL("bits " << bits);
  }
#endif
  CHECK(F32ToF16(65519.996f) == 0x7bff);
  CHECK(F32ToF16(65520.0f) == 0x7c00);  // halfway, to even: infinity
  CHECK(F32ToF16(0x1p-25f) == 0x0000);  // halfway, to even: zero
  CHECK(F32ToF16(0x1.000002p-25f) == 0x0001);
  CHECK(F32ToF16(-1.0f) == 0xbc00);
}

TEST_CASE("BF16 rounds to nearest even and keeps NaN", "[kernels][unit]") {
  CHECK(BF16ToF32(0x3f80) == 1.0f);
  CHECK(F32ToBF16(1.0f + 0x1p-8f) == 0x3f80);  // halfway, to even
  CHECK(F32ToBF16(1.0f + 0x3p-8f) == 0x3f82);  // halfway, to even
  CHECK(F32ToBF16(1.0f + 0x1.1p-8f) == 0x3f81);
  CHECK(F32ToBF16(std::numeric_limits<float>::max()) == 0x7f80);
  CHECK(std::isnan(BF16ToF32(F32ToBF16(std::bit_cast<float>(0x7f800001u)))));
}

// Blocks written by hand from the format's text.
TEST_CASE("Q8_0 and Q4_0 blocks decode as GGUF defines them", "[kernels][unit]") {
  uint16_t half_bits = 0x3800;  // 0.5
  std::vector<uint8_t> q8(34);
  std::memcpy(q8.data(), &half_bits, 2);
  for (int i = 0; i < 32; ++i) q8[2 + i] = static_cast<uint8_t>(static_cast<int8_t>(i - 16));
  std::vector<float> out(32);
  DequantizeRow(DType::kQ8_0, q8.data(), 32, out.data());
  for (int i = 0; i < 32; ++i) CHECK(out[i] == 0.5f * static_cast<float>(i - 16));

  std::vector<uint8_t> q4(18);
  std::memcpy(q4.data(), &half_bits, 2);
  for (int j = 0; j < 16; ++j) q4[2 + j] = static_cast<uint8_t>(j | ((15 - j) << 4));
  DequantizeRow(DType::kQ4_0, q4.data(), 32, out.data());
  for (int j = 0; j < 16; ++j) {
    CHECK(out[j] == 0.5f * static_cast<float>(j - 8));
    CHECK(out[j + 16] == 0.5f * static_cast<float>(7 - j));
  }
}

TEST_CASE("Rows of blocks have the sizes of GGUF", "[kernels][unit]") {
  CHECK(RowBytes(DType::kF32, 3) == 12);
  CHECK(RowBytes(DType::kBF16, 3) == 6);
  CHECK(RowBytes(DType::kQ8_0, 64) == 68);
  CHECK(RowBytes(DType::kQ4_0, 64) == 36);
}

}  // namespace
}  // namespace heddle::kernels
