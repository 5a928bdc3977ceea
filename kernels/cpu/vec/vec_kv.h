// The 8-bit elements of a KV cache as Vec; kernels/kv_cache.h has their meaning.
// REQUIRES: one of the vec_*.h headers and vec_math.h included before this one.
#pragma once

#include <cstdint>
#include <cstring>

namespace heddle::kernels::cpu {
namespace {

inline Vec FromInt8(const int8_t* p) {
  using Bytes = int8_t __attribute__((vector_size(kLanes)));
  Bytes bytes;
  std::memcpy(&bytes, p, sizeof(bytes));
  return __builtin_convertvector(__builtin_convertvector(bytes, IntVec), Vec);
}
// Stores integers within a byte, held in F32.
inline void ToInt8(int8_t* p, Vec v) {
  using Bytes = int8_t __attribute__((vector_size(kLanes)));
  Bytes bytes = __builtin_convertvector(__builtin_convertvector(v, IntVec), Bytes);
  std::memcpy(p, &bytes, sizeof(bytes));
}

// Reads the OCP 8-bit float with 4 bits of exponent. Its bits are those of an F16 whose exponent
// lacks its first bit, which is a factor of 2^8.
inline Vec FromF8E4M3(const uint8_t* p) {
  using Bytes = uint8_t __attribute__((vector_size(kLanes)));
  using Halves = uint16_t __attribute__((vector_size(kLanes * 2)));
  Bytes bytes;
  std::memcpy(&bytes, p, sizeof(bytes));
  Halves wide = __builtin_convertvector(bytes, Halves);
  Halves magnitude = wide & 0x7f;
  Halves halves = ((wide & 0x80) << 8) | (magnitude << 7);
  halves |= (Halves)(magnitude == 0x7f) & 0x7c00;  // NaN
  uint16_t stored[kLanes];
  std::memcpy(stored, &halves, sizeof(halves));
  return FromF16(stored) * Set(256.0f);
}
// Rounds to nearest even; magnitudes beyond 448 become 448.
inline void ToF8E4M3(uint8_t* p, Vec v) {
  using Bytes = uint8_t __attribute__((vector_size(kLanes)));
  Vec magnitude = Min(Abs(v), Set(448.0f));
  IntVec bits = Bits(magnitude);
  IntVec normal = ((bits + 0x7ffff + ((bits >> 20) & 1)) >> 20) - (120 << 3);
  const Vec unit = Set(0x1p14f);  // adding it leaves multiples of 2^-9
  IntVec subnormal = Bits(magnitude + unit) - Bits(unit);
  IntVec is_small = magnitude < Set(0x1p-6f);
  IntVec is_nan = v != v;
  IntVec code = (subnormal & is_small) | (normal & ~is_small);
  code = (code & ~is_nan) | (is_nan & 0x7f) | ((Bits(v) >> 24) & 0x80);
  Bytes bytes = __builtin_convertvector(code, Bytes);
  std::memcpy(p, &bytes, sizeof(bytes));
}

}  // namespace
}  // namespace heddle::kernels::cpu
