// Elements of the KV cache as BF16, which holds all of them exactly: BF16 itself, int8 and FP8
// E4M3; kernels/kv_cache.h has their meaning. REQUIRES: vec_avx512.h and vec_math.h included before
// this one, in a source for AVX-512 BF16.
#pragma once

#include <cstdint>

namespace heddle::kernels::cpu {
namespace {

inline __m512bh AsPairs(__m512i v) { return reinterpret_cast<__m512bh>(v); }
inline __m512i AsBits(__m512bh v) { return reinterpret_cast<__m512i>(v); }

inline __mmask32 FirstOf32(int32_t n) { return n >= 32 ? 0xffffffffu : n <= 0 ? 0 : (1u << n) - 1; }

// Elements [i, i + 32) of a row as BF16; those beyond `n` are zero.
struct BF16Halves {
  static constexpr int kBytes = 2;
  static constexpr bool kScaled = false;
  static __m512i LoadAt(const char* row, int32_t i, int32_t n) {
    const char* p = row + i * kBytes;
    return n - i >= 32 ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi16(FirstOf32(n - i), p);
  }
};
inline __m256i LoadBytes32(const char* row, int32_t i, int32_t n) {
  return n - i >= 32 ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + i))
                     : _mm256_maskz_loadu_epi8(FirstOf32(n - i), row + i);
}
struct Int8Halves {
  static constexpr int kBytes = 1;
  static constexpr bool kScaled = true;
  static __m512i LoadAt(const char* row, int32_t i, int32_t n) {
    const __m256i bytes = LoadBytes32(row, i, n);
    const __m512i low = _mm512_cvtepi8_epi32(_mm256_castsi256_si128(bytes));
    const __m512i high = _mm512_cvtepi8_epi32(_mm256_extracti128_si256(bytes, 1));
    return AsBits(_mm512_cvtne2ps_pbh(_mm512_cvtepi32_ps(high), _mm512_cvtepi32_ps(low)));
  }
};

// BF16 of the magnitudes 0 .. 127 of E4M3; see F8E4M3ToF32 in kv_element.h.
struct E4M3Table {
  alignas(64) uint16_t entries[128];
  constexpr E4M3Table() : entries() {
    for (int m = 1; m < 127; ++m) {
      int exponent = m < 8 ? 1 : m >> 3;
      int mantissa = m < 8 ? m : 8 + m % 8;
      for (; mantissa < 8; --exponent) mantissa *= 2;  // multiples of 2^-9, normalised
      entries[m] = static_cast<uint16_t>(((exponent + 120) << 7) | ((mantissa - 8) << 4));
    }
    entries[127] = 0x7fc0;  // NaN
  }
};
constexpr E4M3Table kE4M3Table;

struct F8Halves {
  static constexpr int kBytes = 1;
  static constexpr bool kScaled = false;
  static __m512i LoadAt(const char* row, int32_t i, int32_t n) {
    const __m512i codes = _mm512_cvtepu8_epi16(LoadBytes32(row, i, n));
    const uint16_t* table = kE4M3Table.entries;
    const __m512i low =
        _mm512_permutex2var_epi16(_mm512_load_si512(table), codes, _mm512_load_si512(table + 32));
    const __m512i high = _mm512_permutex2var_epi16(_mm512_load_si512(table + 64), codes,
                                                   _mm512_load_si512(table + 96));
    const __mmask32 is_high = _mm512_test_epi16_mask(codes, _mm512_set1_epi16(0x40));
    const __m512i sign =
        _mm512_and_si512(_mm512_slli_epi16(codes, 8), _mm512_set1_epi16(INT16_MIN));
    return _mm512_or_si512(_mm512_mask_blend_epi16(is_high, low, high), sign);
  }
};

}  // namespace
}  // namespace heddle::kernels::cpu
