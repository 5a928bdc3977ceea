// Views of activations and sources of weights. No ownership, no shape algebra: rows of a matrix.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/dtype.h"

namespace heddle::kernels {

// A [rows, cols] view of activations in a backend's memory; row r starts at
// data + r * stride elements. Element type: Device::activation_dtype() (F32 on the CPU).
struct Tensor {
  void* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;

  template <typename T>
  constexpr T* row(int64_t r) const {
    return static_cast<T*>(data) + r * stride;
  }
};

// A [rows, cols] matrix as it lies in a checkpoint: row-major, `rows` output features, rows
// contiguous at RowBytes(dtype, cols). Borrowed: must outlive Device::Pack only.
struct WeightSource {
  const void* data = nullptr;  // host memory, any alignment
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  std::string name;  // for messages
};

}  // namespace heddle::kernels
