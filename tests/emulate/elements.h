// The values of 16-bit and 8-bit elements for emulated kernels: the same as those of
// kernels/dtype.h and kernels/kv_element.h, without a call for each.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "kernels/dtype.h"
#include "kernels/kv_element.h"

namespace heddle::kernels::cuda::emulate {

inline float ValueOfBF16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

inline float ValueOfF16(uint16_t bits) {
#if defined(__F16C__)
  return _cvtsh_ss(bits);
#else
  return F16ToF32(bits);
#endif
}

// For all E4M3 codes.
inline const std::array<float, 256> kF8Values = [] {
  std::array<float, 256> values{};
  for (size_t i = 0; i < values.size(); ++i) values[i] = F8E4M3ToF32(static_cast<uint8_t>(i));
  return values;
}();

inline float ValueOfF8(uint8_t bits) { return kF8Values[bits]; }

inline uint16_t RoundToBF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace heddle::kernels::cuda::emulate
