// Rows of x as codes, as kernels, libraries and host code pass them on. Includes neither CUDA nor
// Abseil.
#pragma once

#include <cstdint>

#include "kernels/cuda/linear/weight_layout.h"

namespace heddle::kernels::cuda {

// Rows of x as 8-bit codes, which a library multiplies by the codes of kF8Row, kInt8Row or kF8Block
// weights. Each row has its own scale, or one per kScaleTile columns for kF8Block: the largest
// magnitude of these columns / 448, or / 127. Codes have the order of columns that weights have
// within a group, padded with zeros.
struct CodeRows {
  WeightLayout layout = WeightLayout::kF8Row;  // of the weight
  uint8_t* codes = nullptr;                    // [n, row_bytes]
  int64_t row_bytes = 0;
  float* scales = nullptr;  // [n]; kF8Block: [row_bytes / kScaleTile rounded up, scales_stride]
  int64_t scales_stride = 0;
};
// Codes of a row that can be kept as F32 in shared memory until its scale is known: in norms and
// epilogues.
inline constexpr int64_t kMaxKeptCodes = 40960;

}  // namespace heddle::kernels::cuda
