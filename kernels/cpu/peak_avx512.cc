// Peak rates of the AVX-512 level: dpbusd for int8.
#include "kernels/cpu/vec/vec_avx512.h"

#include "kernels/cpu/vec/vec_math.h"

#include "kernels/cpu/peak_kernels.h"

namespace heddle::kernels::cpu {
namespace {

float Int8Rounds(int64_t rounds) {
  __m512i sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = _mm512_set1_epi32(i);
  __m512i w = _mm512_set1_epi8(3);
  const __m512i x = _mm512_set1_epi8(5);
  for (int64_t r = 0; r < rounds; ++r) {
    asm volatile("" : "+v"(w));  // keeps the compiler from computing the product only once
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) sums[i] = _mm512_dpbusd_epi32(sums[i], w, x);
  }
  for (int i = 1; i < kChains; ++i) sums[0] = _mm512_add_epi32(sums[0], sums[i]);
  return static_cast<float>(_mm512_reduce_add_epi32(sums[0]));
}

}  // namespace

extern const PeakKernels kPeakAvx512;
const PeakKernels kPeakAvx512 = {ReadAll, FmaRounds, kFmaFlops, Int8Rounds,
                                 int64_t{kChains} * 64 * 2};

}  // namespace heddle::kernels::cpu
