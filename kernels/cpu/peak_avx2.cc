// Peak rates of the AVX2 level: maddubs, madd and an addition for int8.
#include "kernels/cpu/vec/vec_avx2.h"

#include "kernels/cpu/vec/vec_math.h"

#include "kernels/cpu/peak_kernels.h"

namespace heddle::kernels::cpu {
namespace {

float Int8Rounds(int64_t rounds) {
  __m256i sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = _mm256_set1_epi32(i);
  __m256i w = _mm256_set1_epi8(3);
  const __m256i x = _mm256_set1_epi8(5);
  const __m256i ones = _mm256_set1_epi16(1);
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) {
      asm volatile("" : "+x"(w));  // keeps the compiler from computing the product only once
      __m256i pairs = _mm256_maddubs_epi16(w, x);
      sums[i] = _mm256_add_epi32(sums[i], _mm256_madd_epi16(pairs, ones));
    }
  }
  for (int i = 1; i < kChains; ++i) sums[0] = _mm256_add_epi32(sums[0], sums[i]);
  return static_cast<float>(_mm256_extract_epi32(sums[0], 0));
}

}  // namespace

extern const PeakKernels kPeakAvx2;
const PeakKernels kPeakAvx2 = {ReadAll, FmaRounds, kFmaFlops, Int8Rounds,
                               int64_t{kChains} * 32 * 2};

}  // namespace heddle::kernels::cpu
