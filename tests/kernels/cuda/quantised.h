// Rows of x as products of codes see them, computed from the definition in plain loops.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/kv_element.h"
#include "tests/kernels/testing.h"

namespace heddle::kernels::test {

enum class CodeScales : uint8_t { kF8Rows, kInt8Rows, kF8Tiles };

// E4M3 or integers times the largest magnitude / 448 or / 127, of a row or of 128 columns of it.
inline Matrix Quantised(const Matrix& x, CodeScales scales) {
  Matrix out(x.num_rows(), x.num_cols());
  const bool is_int = scales == CodeScales::kInt8Rows;
  const int64_t step = scales == CodeScales::kF8Tiles ? 128 : x.num_cols();
  const float end = is_int ? 127.0f : 448.0f;
  for (int64_t t = 0; t < x.num_rows(); ++t) {
    for (int64_t begin = 0; begin < x.num_cols(); begin += step) {
      const int64_t last = std::min(begin + step, x.num_cols());
      float largest = 1e-20f;
      for (int64_t k = begin; k < last; ++k) largest = std::max(largest, std::fabs(x(t, k)));
      for (int64_t k = begin; k < last; ++k) {
        const float code = x(t, k) * (end / largest);
        const float value = is_int ? std::nearbyint(code) : F8E4M3ToF32(F32ToF8E4M3(code));
        *out.at(t, k) = value * (largest / end);
      }
    }
  }
  return out;
}

}  // namespace heddle::kernels::test
