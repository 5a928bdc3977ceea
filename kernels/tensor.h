// Views of activations and sources of weights. No ownership, no shape algebra: rows of a matrix.
#pragma once

#include <cstdint>
#include <span>
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

// Makes rows of a matrix whose layout in the file differs from that of its dtype.
class RowReader {
 public:
  virtual ~RowReader() = default;
  // Writes rows [begin, begin + count), RowBytes(dtype, cols) each. Safe to call from any thread.
  virtual void ReadRows(int64_t begin, int64_t count, uint8_t* out) const = 0;
};

// A [rows, cols] matrix as it is stored in a checkpoint: row-major, `rows` output features, rows
// contiguous at RowBytes(dtype, cols). Borrowed: must outlive Device::Pack only.
struct WeightSource {
  const void* data = nullptr;  // host memory, any alignment; nullptr: `reader` makes the rows
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  std::string name;  // for messages
  const RowReader* reader = nullptr;
  int64_t first_row = 0;  // the reader's row that is this source's row 0
  // Empty, or a permutation [cols]: stored column c is input feature column_order[c].
  std::span<const int32_t> column_order = {};
  // Empty, or [ranges + 1] columns, ascending from 0 to cols, where whole blocks begin: products of
  // these ranges, of which there are a power of two and some may be empty, are summed apart, and
  // the sums added as a binary tree over the ranges. The ranges of half of the tree then have the
  // sum of a source with these columns alone, bit for bit. Only the CPU device heeds it. REQUIRES:
  // no column_order, and the same in all stacked sources.
  std::span<const int64_t> sum_borders = {};
  // The weights are 8-bit integers made to be multiplied by such integers (W8A8): kernels may also
  // quantise rows of x, each with its own scale.
  bool takes_int8_x = false;
};

}  // namespace heddle::kernels
