// Peak rate of dpbf16ps: dot products of BF16 pairs, added to F32.
#include "kernels/cpu/vec/vec_avx512.h"

#include "kernels/cpu/vec/vec_math.h"

#include "kernels/cpu/peak_kernels.h"

namespace heddle::kernels::cpu {
namespace {

float Bf16Rounds(int64_t rounds) {
  __m512 sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = Set(static_cast<float>(i));
  __m512i w = _mm512_set1_epi16(0x3f80);  // ones
  const __m512i x = _mm512_set1_epi16(0x3f00);
  for (int64_t r = 0; r < rounds; ++r) {
    asm volatile("" : "+v"(w));  // keeps the compiler from computing the product only once
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) {
      sums[i] = _mm512_dpbf16_ps(sums[i], (__m512bh)w, (__m512bh)x);
    }
  }
  for (int i = 1; i < kChains; ++i) sums[0] = sums[0] + sums[i];
  return ReduceAdd(sums[0]);
}

}  // namespace

extern const Bf16PeakKernels kPeakAvx512Bf16;
const Bf16PeakKernels kPeakAvx512Bf16 = {Bf16Rounds, int64_t{kChains} * kLanes * 4};

}  // namespace heddle::kernels::cpu
