// The place of a head's keys and values in the arrays of a cache, and the rotation of two columns:
// what kernels that write the cache share with those that read it.
#pragma once

#include <cstdint>

#include "kernels/cuda/primitives/primitives.cuh"
#include "kernels/kv_cache.h"

namespace heddle::kernels::cuda {

// The address of a position of a head in the arrays of a cache.
struct KeyPlace {
  int64_t row;    // byte offset of its elements; kv_cache.h
  int64_t scale;  // byte offset of its scale, for kInt8 only
};

HEDDLE_HOST_DEVICE KeyPlace PlaceOfKey(const KvCacheView& cache, int64_t page, int64_t offset,
                                       int64_t kv_head) {
  const int64_t row_bytes = cache.head_dim * KvElementBytes(cache.dtype);
  const int64_t head = cache.PageOffset(page) + kv_head * cache.head_bytes();
  return {head + offset * row_bytes,
          head + cache.page_tokens * row_bytes + offset * KvScaleBytes(cache.dtype)};
}

// Two columns of a head, turned by an angle.
struct RotatedPair {
  float first;
  float second;
};
HEDDLE_DEVICE RotatedPair Rotate(float x, float y, float cos, float sin) {
  return {x * cos - y * sin, y * cos + x * sin};
}

}  // namespace heddle::kernels::cuda
