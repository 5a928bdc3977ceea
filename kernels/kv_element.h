// Access to single elements and rows of a KV cache on the host, for reference code and tests; it is
// not fast.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/dtype.h"
#include "kernels/kv_cache.h"

namespace heddle::kernels {

// Byte offset in an array of the elements of `head` at slot = page * page_tokens + offset.
inline int64_t RowOffset(const KvCacheView& cache, int64_t slot, int32_t head) {
  return cache.PageOffset(slot / cache.page_tokens) + head * cache.head_bytes() +
         slot % cache.page_tokens * cache.head_dim * KvElementBytes(cache.dtype);
}

// Byte offset of the row's scale. REQUIRES: a type with scales.
inline int64_t ScaleOffset(const KvCacheView& cache, int64_t slot, int32_t head) {
  return cache.PageOffset(slot / cache.page_tokens) + head * cache.head_bytes() +
         int64_t{cache.page_tokens} * cache.head_dim * KvElementBytes(cache.dtype) +
         slot % cache.page_tokens * KvScaleBytes(cache.dtype);
}

// Source: OCP 8-bit Floating Point Specification 1.0, table 1.
inline float F8E4M3ToF32(uint8_t bits) {
  const int exponent = (bits >> 3) & 15;
  const int mantissa = bits & 7;
  float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                  : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  if ((bits & 0x7f) == 0x7f) magnitude = std::numeric_limits<float>::quiet_NaN();
  return bits & 0x80 ? -magnitude : magnitude;
}

// Rounds to nearest even; magnitudes beyond 448 become 448.
inline uint8_t F32ToF8E4M3(float value) {
  const auto sign = static_cast<uint8_t>(std::bit_cast<uint32_t>(value) >> 24 & 0x80);
  if (std::isnan(value)) return sign | 0x7f;
  const float magnitude = std::min(std::fabs(value), 448.0f);
  if (magnitude < 0x1p-6f) {  // multiples of 2^-9
    return sign | static_cast<uint8_t>(std::nearbyint(magnitude * 0x1p9f));
  }
  const uint32_t bits = std::bit_cast<uint32_t>(magnitude);
  const uint32_t rounded = (bits + 0x7ffff + ((bits >> 20) & 1)) >> 20;
  return sign | static_cast<uint8_t>(rounded - (120u << 3));
}

// F32, F16, BF16 and F8E4M3 only.
inline float LoadElement(DType dtype, const void* base, int64_t index) {
  if (dtype == DType::kF32) return static_cast<const float*>(base)[index];
  if (dtype == DType::kF8E4M3) return F8E4M3ToF32(static_cast<const uint8_t*>(base)[index]);
  uint16_t bits = static_cast<const uint16_t*>(base)[index];
  return dtype == DType::kF16 ? F16ToF32(bits) : BF16ToF32(bits);
}

inline void StoreElement(DType dtype, void* base, int64_t index, float value) {
  if (dtype == DType::kF32) {
    static_cast<float*>(base)[index] = value;
  } else if (dtype == DType::kF8E4M3) {
    static_cast<uint8_t*>(base)[index] = F32ToF8E4M3(value);
  } else {
    static_cast<uint16_t*>(base)[index] = dtype == DType::kF16 ? F32ToF16(value) : F32ToBF16(value);
  }
}

// Loads one row of any type: out [head_dim].
inline void LoadKvRow(const KvCacheView& cache, const void* array, int64_t slot, int32_t head,
                      float* out) {
  const char* row = static_cast<const char*>(array) + RowOffset(cache, slot, head);
  if (cache.dtype != DType::kInt8) {
    for (int32_t i = 0; i < cache.head_dim; ++i) out[i] = LoadElement(cache.dtype, row, i);
    return;
  }
  float scale;
  std::memcpy(&scale, static_cast<const char*>(array) + ScaleOffset(cache, slot, head), 4);
  for (int32_t i = 0; i < cache.head_dim; ++i) {
    out[i] = scale * static_cast<float>(static_cast<int8_t>(row[i]));
  }
}

// The scale of a row of kInt8.
inline float Int8Scale(const float* x, int32_t n) {
  float largest = 0;
  for (int32_t i = 0; i < n; ++i) {
    if (!std::isfinite(x[i])) return std::numeric_limits<float>::quiet_NaN();
    largest = std::max(largest, std::fabs(x[i]));
  }
  return largest < 0x1p-100f ? 0.0f : largest / 127.0f;
}

// Stores x [head_dim] as one row of any type.
inline void StoreKvRow(const KvCacheView& cache, void* array, int64_t slot, int32_t head,
                       const float* x) {
  char* row = static_cast<char*>(array) + RowOffset(cache, slot, head);
  if (cache.dtype != DType::kInt8) {
    for (int32_t i = 0; i < cache.head_dim; ++i) StoreElement(cache.dtype, row, i, x[i]);
    return;
  }
  const float scale = Int8Scale(x, cache.head_dim);
  const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
  for (int32_t i = 0; i < cache.head_dim; ++i) {
    const float code = std::isnan(scale) ? 0.0f : std::nearbyint(x[i] * inverse);
    row[i] = static_cast<char>(static_cast<int8_t>(std::clamp(code, -127.0f, 127.0f)));
  }
  std::memcpy(static_cast<char*>(array) + ScaleOffset(cache, slot, head), &scale, 4);
}

}  // namespace heddle::kernels
