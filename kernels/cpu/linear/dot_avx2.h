// Bytes for AVX2, and dot products if the compiler may use VNNI. block_parts.h explains the names,
// in which linear_dot.h and linear_blocks.h are written.
// REQUIRES: vec_avx2.h included before.
#pragma once

#include <cstdint>
#include <cstring>

namespace heddle::kernels::cpu {
namespace {

using ByteVec = __m256i;
using IntSums = __m256i;
inline ByteVec LoadBytes(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline ByteVec And(ByteVec v, uint8_t mask) {
  return _mm256_and_si256(v, _mm256_set1_epi8(static_cast<char>(mask)));
}
inline ByteVec Or(ByteVec a, ByteVec b) { return _mm256_or_si256(a, b); }
[[maybe_unused]] inline ByteVec Flip(ByteVec v) {
  return _mm256_xor_si256(v, _mm256_set1_epi8(static_cast<char>(0x80)));
}
template <int kBits>
inline ByteVec Shift(ByteVec v) {
  if constexpr (kBits > 0) return _mm256_srli_epi16(v, kBits);
  return _mm256_slli_epi16(v, -kBits);
}
inline ByteVec LoadTable(const uint8_t* entries) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(entries)));
}
inline ByteVec Lookup(ByteVec table, ByteVec indices) {
  return _mm256_shuffle_epi8(table, indices);
}
inline IntSums SetInts(int32_t x) { return _mm256_set1_epi32(x); }
inline Vec ToFloat(IntSums v) { return _mm256_cvtepi32_ps(v); }
inline IntSums IntsFromInt8(const int8_t* p) {
  return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
inline IntSums IntsFromUint8(const uint8_t* p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
constexpr int kTableBias = 128;  // products take unsigned weights
#if defined(__AVXVNNI__)
constexpr int kE2m1Bias = kTableBias;
template <bool kSigned>
inline IntSums DotAdd(IntSums sum, ByteVec w, const int8_t* x) {
  int32_t word;
  std::memcpy(&word, x, 4);
  return _mm256_dpbusd_avx_epi32(sum, w, _mm256_set1_epi32(word));
}
inline IntSums DotAdd16(IntSums sum, IntSums w, int32_t x) {
  return _mm256_dpwssd_avx_epi32(sum, w, _mm256_set1_epi32(x));
}
#else
constexpr int kE2m1Bias = 12;  // the largest of them: codes of 5 bits, for sums16.h
#endif

struct FloatTable {
  __m256 low, high;
};
inline FloatTable LoadFloatTable(const float* entries) {
  return {_mm256_loadu_ps(entries), _mm256_loadu_ps(entries + 8)};
}
// The permutation takes the low three bits of an index, the blend its topmost.
template <int kShift>
inline Vec LookupFloat(const FloatTable& table, IntVec words) {
  __m256i index = _mm256_srli_epi32(reinterpret_cast<__m256i>(words), kShift);
  __m256 fourth = _mm256_castsi256_ps(_mm256_slli_epi32(index, 28));
  return _mm256_blendv_ps(_mm256_permutevar8x32_ps(table.low, index),
                          _mm256_permutevar8x32_ps(table.high, index), fourth);
}

}  // namespace
}  // namespace heddle::kernels::cpu
