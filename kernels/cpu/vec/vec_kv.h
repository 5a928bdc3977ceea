// The 8-bit elements of a KV cache as Vec; kernels/kv_cache.h has their meaning.
// REQUIRES: one of the vec_*.h headers and vec_math.h included before this one.
#pragma once

#include <cstdint>
#include <cstring>

namespace heddle::kernels::cpu {
namespace {

// kLanes bytes as integers. GCC 12 takes half a register of bytes apart one by one, so that the
// instruction has to be named where that is what fills the lanes.
inline IntVec FromSignedBytes(const int8_t* p) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  return reinterpret_cast<IntVec>(
      _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#else
  using Bytes = int8_t __attribute__((vector_size(kLanes)));
  Bytes bytes;
  std::memcpy(&bytes, p, sizeof(bytes));
  return __builtin_convertvector(bytes, IntVec);
#endif
}
inline IntVec FromUnsignedBytes(const uint8_t* p) {
  return FromSignedBytes(reinterpret_cast<const int8_t*>(p)) & 0xff;
}

inline Vec FromInt8(const int8_t* p) { return __builtin_convertvector(FromSignedBytes(p), Vec); }
// Stores integers within a byte, held in F32.
inline void ToInt8(int8_t* p, Vec v) {
  using Bytes = int8_t __attribute__((vector_size(kLanes)));
  Bytes bytes = __builtin_convertvector(__builtin_convertvector(v, IntVec), Bytes);
  std::memcpy(p, &bytes, sizeof(bytes));
}

// Reads the OCP 8-bit float with 4 bits of exponent, whose bias is 7, and 3 of mantissa.
#if defined(__AVX2__) && !defined(__AVX512F__)
// Its bits are those of an F16 whose exponent lacks its first bit, which is a factor of 2^8.
inline Vec FromF8E4M3(const uint8_t* p) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  const __m128i moved = _mm_slli_epi16(_mm_cvtepi8_epi16(bytes), 7);  // the sign is there twice
  const __m128i halves = _mm_andnot_si128(_mm_set1_epi16(0x4000), moved);
  const __m128i magnitude = _mm_and_si128(halves, _mm_set1_epi16(0x7fff));
  const __m128i is_nan = _mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7f << 7));
  return _mm256_cvtph_ps(_mm_or_si128(halves, is_nan)) * Set(256.0f);
}
#else
// Without an exponent it holds multiples of 2^-9; of F32 such bits would be subnormal, which is
// slow.
inline Vec FromF8E4M3(const uint8_t* p) {
  const IntVec code = FromUnsignedBytes(p);
  const IntVec magnitude = code & 0x7f;
  const Vec subnormal = __builtin_convertvector(magnitude, Vec) * Set(0x1p-9f);
  const Vec normal = FromBits((magnitude << 20) + (120 << 23));
  const IntVec is_nan = magnitude == 0x7f;
  const Vec value = Select(magnitude < 8, subnormal, normal);
  return FromBits(Bits(value) | (is_nan & 0x7fc00000) | ((code & 0x80) << 24));
}
#endif
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
