// Bytes for AVX-512, and dot products if the compiler may use VNNI. linear_dot.h and
// linear_blocks.h are written in these names, which block_parts.h explains.
// REQUIRES: vec_avx512.h included before.
#pragma once

#include <cstdint>
#include <cstring>

namespace heddle::kernels::cpu {
namespace {

using ByteVec = __m512i;
using IntSums = __m512i;
constexpr int kTableBias = 128;  // products take unsigned weights

inline ByteVec LoadBytes(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline ByteVec And(ByteVec v, uint8_t mask) {
  return _mm512_and_si512(v, _mm512_set1_epi8(static_cast<char>(mask)));
}
inline ByteVec Or(ByteVec a, ByteVec b) { return _mm512_or_si512(a, b); }
[[maybe_unused]] inline ByteVec Flip(ByteVec v) {
  return _mm512_xor_si512(v, _mm512_set1_epi8(static_cast<char>(0x80)));
}
template <int kBits>
inline ByteVec Shift(ByteVec v) {
  if constexpr (kBits > 0) return _mm512_srli_epi16(v, kBits);
  return _mm512_slli_epi16(v, -kBits);
}
inline ByteVec LoadTable(const uint8_t* entries) {
  return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(entries)));
}
inline ByteVec Lookup(ByteVec table, ByteVec indices) {
  return _mm512_shuffle_epi8(table, indices);
}
inline IntSums SetInts(int32_t x) { return _mm512_set1_epi32(x); }
inline Vec ToFloat(IntSums v) { return _mm512_cvtepi32_ps(v); }
inline IntSums IntsFromInt8(const int8_t* p) {
  return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline IntSums IntsFromUint8(const uint8_t* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
#if defined(__AVX512VNNI__)
constexpr int kE2m1Bias = kTableBias;
inline IntSums DotAdd16(IntSums sum, IntSums w, int32_t x) {
  return _mm512_dpwssd_epi32(sum, w, _mm512_set1_epi32(x));
}
template <bool kSigned>
inline IntSums DotAdd(IntSums sum, ByteVec w, const int8_t* x) {
  int32_t word;
  std::memcpy(&word, x, 4);
  return _mm512_dpbusd_epi32(sum, w, _mm512_set1_epi32(word));
}
#else
constexpr int kE2m1Bias = 12;  // the largest of them: codes of 5 bits, for sums16.h
#endif

using FloatTable = __m512;
inline FloatTable LoadFloatTable(const float* entries) { return _mm512_loadu_ps(entries); }
template <int kShift>
inline Vec LookupFloat(FloatTable table, IntVec words) {  // uses the low four bits of an index
  return _mm512_permutexvar_ps(_mm512_srli_epi32(reinterpret_cast<__m512i>(words), kShift), table);
}

}  // namespace
}  // namespace heddle::kernels::cpu
