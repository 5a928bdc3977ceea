// Peak rate of int8 dot products with AVX2's vectors.
#include "kernels/cpu/vec/vec_avx2.h"

#include "kernels/cpu/vec/vec_math.h"

#include "kernels/cpu/peak_kernels.h"

namespace heddle::kernels::cpu {
namespace {

float Int8Rounds(int64_t rounds) {
  __m256i sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = _mm256_set1_epi32(i);
  const __m256i w = _mm256_set1_epi8(3);
  const __m256i x = _mm256_set1_epi8(5);
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) sums[i] = _mm256_dpbusd_avx_epi32(sums[i], w, x);
  }
  for (int i = 1; i < kChains; ++i) sums[0] = _mm256_add_epi32(sums[0], sums[i]);
  return static_cast<float>(_mm256_extract_epi32(sums[0], 0));
}

}  // namespace

extern const PeakKernels kPeakAvx2Vnni;
const PeakKernels kPeakAvx2Vnni = {ReadAll, FmaRounds, kFmaFlops, Int8Rounds,
                                   int64_t{kChains} * 32 * 2};

}  // namespace heddle::kernels::cpu
