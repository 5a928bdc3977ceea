// Keys with the keys in the lanes, in the cache's own format: they are transposed as they are
// stored, which takes half or a quarter of the shuffles that floats take, and become F32 where they
// are multiplied. For few queries, which convert each key once or twice.
// REQUIRES: vec_avx2.h, vec_math.h and attention_kernels.h included before this one.
#pragma once

#include <cstdint>
#include <cstring>

namespace heddle::kernels::cpu {
namespace {

// 16 bytes of a row from byte `at` on; those beyond its end are 0.
inline __m128i LoadCodes(const char* row, int32_t at, int32_t row_bytes) {
  if (at + 16 <= row_bytes) return _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + at));
  char rest[16] = {};
  std::memcpy(rest, row + at, static_cast<size_t>(row_bytes - at));
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rest));
}

template <int kBytes>
inline __m256i InterleaveLow(__m256i a, __m256i b) {
  return kBytes == 1 ? _mm256_unpacklo_epi8(a, b) : _mm256_unpacklo_epi16(a, b);
}
template <int kBytes>
inline __m256i InterleaveHigh(__m256i a, __m256i b) {
  return kBytes == 1 ? _mm256_unpackhi_epi8(a, b) : _mm256_unpackhi_epi16(a, b);
}

template <typename Element>
struct CodeKeys {
  static constexpr int kBytes = Element::kBytes;
  static constexpr int kCodes = 16 / kBytes;  // of a row, and rows, in half of a vector
  static_assert(kBytes == 1 || kBytes == 2);

  const char* codes;  // [padded_dim][kBlockTokens] elements

  explicit CodeKeys(const Scratch& s) : codes(reinterpret_cast<const char*>(s.transposed)) {}
  Vec At(int32_t d, int32_t j) const { return Element::LoadAt(codes, d * kBlockTokens + j); }
  static void Transpose(const AttendArgs& args, const BlockRows& rows, const Scratch& s);
};

// Halves of vectors are squares of kCodes rows and as many codes. Interleaving the first half of
// the rows with the second rotates the bits of an element's place, its row and its column, by one;
// when each bit of the row has become one of the column, the square is transposed.
template <typename Element>
HEDDLE_KERNEL_PART void CodeKeys<Element>::Transpose(const AttendArgs& args, const BlockRows& rows,
                                                     const Scratch& s) {
  char* out = reinterpret_cast<char*>(s.transposed);
  const int32_t row_bytes = args.head_dim * kBytes;
  for (int32_t j = 0; j < kBlockTokens; j += 2 * kCodes) {
    for (int32_t at = 0; at < row_bytes; at += 16) {
      __m256i square[kCodes];
#pragma GCC unroll 16
      for (int i = 0; i < kCodes; ++i) {
        const __m128i low = LoadCodes(rows.keys[j + i], at, row_bytes);
        const __m128i high = LoadCodes(rows.keys[j + kCodes + i], at, row_bytes);
        square[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
      }
#pragma GCC unroll 4
      for (int width = 1; width < kCodes; width *= 2) {
        __m256i next[kCodes];
#pragma GCC unroll 8
        for (int i = 0; i < kCodes / 2; ++i) {
          next[2 * i] = InterleaveLow<kBytes>(square[i], square[i + kCodes / 2]);
          next[2 * i + 1] = InterleaveHigh<kBytes>(square[i], square[i + kCodes / 2]);
        }
#pragma GCC unroll 16
        for (int i = 0; i < kCodes; ++i) square[i] = next[i];
      }
      char* to = out + (at / kBytes * kBlockTokens + j) * kBytes;
#pragma GCC unroll 16
      for (int i = 0; i < kCodes; ++i) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i * kBlockTokens * kBytes), square[i]);
      }
    }
  }
}

}  // namespace
}  // namespace heddle::kernels::cpu
