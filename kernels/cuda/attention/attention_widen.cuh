// Elements of 8-bit caches as the 16-bit floats that matrix instructions compute with
// (flash::Computed): F8 as F16, exactly; int8 as BF16, with its scale applied and rounded once.
#pragma once

#include "kernels/cuda/primitives/primitives.cuh"

namespace heddle::kernels::cuda {

// 8 elements, in their order.
HEDDLE_DEVICE Vec16 Widen(const Vec8& codes, float, Float8) {
  Vec16 out;
  HEDDLE_UNROLL
  for (int i = 0; i < 4; ++i) {
    out.word[i] = HalvesOfF8(codes.word[i / 2] >> (16 * (i % 2)) & 0xFFFF);
  }
  return out;
}

HEDDLE_DEVICE Vec16 Widen(const Vec8& codes, float scale, Int8) {
  Vec16 out;
  HEDDLE_UNROLL
  for (int i = 0; i < 4; ++i) {
    const uint32_t pair = codes.word[i / 2] >> (16 * (i % 2));
    const auto low = static_cast<float>(static_cast<int8_t>(pair & 0xFF));
    const auto high = static_cast<float>(static_cast<int8_t>(pair >> 8 & 0xFF));
    out.word[i] = Pack2(low * scale, high * scale, BFloat16());
  }
  return out;
}

}  // namespace heddle::kernels::cuda
