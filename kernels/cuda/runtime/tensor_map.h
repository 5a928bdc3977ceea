// A matrix in device memory as described to the bulk tensor copies of sm_90: opaque to kernels,
// which get it by value. Includes neither CUDA nor Abseil.
#pragma once

#include <cstdint>

namespace heddle::kernels::cuda {

// The matrix, and the box of it that one copy moves: 128 bytes wide, swizzled by 128 bytes in
// shared memory (the 16-byte units of a line are permuted by the line's number modulo 8).
struct TiledMatrix {
  const void* data = nullptr;  // aligned to 16
  int64_t rows = 0;            // below 2^31
  int64_t cols = 0;
  int64_t row_stride = 0;     // elements, a multiple of 16 bytes; 0: row after row
  int32_t box_rows = 0;       // 256 at most
  int32_t element_bytes = 2;  // or 1
  int32_t box_cols() const { return 128 / element_bytes; }
  int64_t row_bytes() const { return element_bytes * (row_stride == 0 ? cols : row_stride); }
};

#if defined(HEDDLE_CUDA_EMULATE)
struct TensorMap {
  const uint8_t* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t row_bytes = 0;
  int32_t box_rows = 0;
  int32_t box_cols = 0;
  int32_t element_bytes = 0;
};
#else
struct alignas(64) TensorMap {  // CUtensorMap
  uint64_t words[16];
};
#endif

}  // namespace heddle::kernels::cuda
