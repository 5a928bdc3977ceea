#include "kernels/dtype.h"

#include <bit>
#include <cstring>

#include "base/check.h"
#include "kernels/block_codes.h"

namespace heddle::kernels {
namespace {

constexpr DTypeInfo kInfos[] = {
    {"f32", 1, 4},           {"f16", 1, 2},         {"bf16", 1, 2},         {"q8_0", 32, 34},
    {"q4_0", 32, 18},        {"q4_1", 32, 20},      {"q5_0", 32, 22},       {"q5_1", 32, 24},
    {"q2_K", 256, 84},       {"q3_K", 256, 110},    {"q4_K", 256, 144},     {"q5_K", 256, 176},
    {"q6_K", 256, 210},      {"iq4_nl", 32, 18},    {"iq4_xs", 256, 136},   {"mxfp4", 32, 17},
    {"int4_g32", 32, 21},    {"int4_g64", 64, 37},  {"int4_g128", 128, 69}, {"int8_g32", 32, 37},
    {"int8_g128", 128, 133}, {"fp8_g32", 32, 36},   {"fp8_g128", 128, 132}, {"nf4", 64, 36},
    {"tq2_0", 256, 66},      {"nvfp4", 64, 40},     {"fp4", 64, 36},        {"iq1", 256, 116},
    {"iq2", 256, 116},       {"iq3_xxs", 256, 140}, {"iq3_s", 256, 140},
};
static_assert(std::size(kInfos) == kNumDTypes);

template <typename T>
T LoadAt(const void* base, int64_t index) {
  T value;  // checkpoints give no alignment
  std::memcpy(&value, static_cast<const char*>(base) + index * static_cast<int64_t>(sizeof(T)),
              sizeof(T));
  return value;
}

void DequantizeQ80(const uint8_t* block, float* out) {
  float d = F16ToF32(LoadAt<uint16_t>(block, 0));
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(static_cast<int8_t>(block[2 + i]));
}

void DequantizeQ40(const uint8_t* block, float* out) {
  float d = F16ToF32(LoadAt<uint16_t>(block, 0));
  for (int i = 0; i < 16; ++i) {
    out[i] = d * static_cast<float>((block[2 + i] & 0xf) - 8);
    out[i + 16] = d * static_cast<float>((block[2 + i] >> 4) - 8);
  }
}

}  // namespace

const DTypeInfo& Info(DType dtype) {
  static constexpr DTypeInfo kInt8 = {"int8", 1, 1};
  static constexpr DTypeInfo kF8E4M3 = {"fp8", 1, 1};
  if (dtype == DType::kInt8) return kInt8;
  if (dtype == DType::kF8E4M3) return kF8E4M3;
  auto index = static_cast<size_t>(dtype);
  HEDDLE_CHECK(index < std::size(kInfos), "unknown dtype");
  return kInfos[index];
}

int64_t RowBytes(DType dtype, int64_t cols) {
  const DTypeInfo& info = Info(dtype);
  HEDDLE_CHECK(cols % info.block_elements == 0, "a row is whole blocks");
  return cols / info.block_elements * info.block_bytes;
}

float F16ToF32(uint16_t bits) {
  uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  uint32_t exponent = (bits >> 10) & 0x1f;
  uint32_t mantissa = bits & 0x3ff;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact in F32
    float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<uint32_t>(magnitude) | sign);
  }
  uint32_t wide = exponent == 31 ? 255 : exponent + (127 - 15);
  return std::bit_cast<float>(sign | (wide << 23) | (mantissa << 13));
}

uint16_t F32ToF16(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00;   // NaN
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // rounds to at least 65520: infinity
  if (magnitude < 0x38800000) {                       // below 2^-14: subnormal or zero
    // Adding 0.5 puts the F16 unit 2^-24 at the last bit of the mantissa; the FPU rounds.
    float rounded = std::bit_cast<float>(magnitude) + 0.5f;
    return sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(rounded) - 0x3f000000);
  }
  uint32_t round = 0xfff + ((magnitude >> 13) & 1);
  return sign | static_cast<uint16_t>((magnitude + round - (112u << 23)) >> 13);
}

float BF16ToF32(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

uint16_t F32ToBF16(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

void DequantizeRow(DType dtype, const void* row, int64_t cols, float* out) {
  const auto* bytes = static_cast<const uint8_t*>(row);
  switch (dtype) {
    case DType::kF32:
      std::memcpy(out, row, static_cast<size_t>(cols) * sizeof(float));
      return;
    case DType::kF16:
      for (int64_t i = 0; i < cols; ++i) out[i] = F16ToF32(LoadAt<uint16_t>(row, i));
      return;
    case DType::kBF16:
      for (int64_t i = 0; i < cols; ++i) out[i] = BF16ToF32(LoadAt<uint16_t>(row, i));
      return;
    case DType::kQ8_0:
      for (int64_t b = 0; b < cols / 32; ++b) DequantizeQ80(bytes + b * 34, out + b * 32);
      return;
    case DType::kQ4_0:
      for (int64_t b = 0; b < cols / 32; ++b) DequantizeQ40(bytes + b * 18, out + b * 32);
      return;
    default:
      DequantizeBlocks(dtype, bytes, cols, out);
      return;
  }
}

}  // namespace heddle::kernels
