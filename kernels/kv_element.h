// Single elements of a KV cache on the host: for reference code and tests, not for fast paths.
#pragma once

#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/kv_cache.h"

namespace heddle::kernels {

// Index of the first element of `head` at slot = page * page_tokens + offset.
inline int64_t ElementOffset(const KvCacheView& cache, int64_t slot, int32_t head) {
  int64_t page = slot / cache.page_tokens;
  int64_t offset = slot % cache.page_tokens;
  return page * cache.page_elements() +
         (static_cast<int64_t>(head) * cache.page_tokens + offset) * cache.head_dim;
}

// F32, F16 and BF16 only.
inline float LoadElement(DType dtype, const void* base, int64_t index) {
  if (dtype == DType::kF32) return static_cast<const float*>(base)[index];
  uint16_t bits = static_cast<const uint16_t*>(base)[index];
  return dtype == DType::kF16 ? F16ToF32(bits) : BF16ToF32(bits);
}

inline void StoreElement(DType dtype, void* base, int64_t index, float value) {
  if (dtype == DType::kF32) {
    static_cast<float*>(base)[index] = value;
    return;
  }
  static_cast<uint16_t*>(base)[index] = dtype == DType::kF16 ? F32ToF16(value) : F32ToBF16(value);
}

}  // namespace heddle::kernels
