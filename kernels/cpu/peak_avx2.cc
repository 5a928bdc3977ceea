// Peak rates of the AVX2 level: maddubs, madd and an addition for int8.
#include "kernels/cpu/vec/vec_avx2.h"

#include "kernels/cpu/vec/vec_math.h"

#include "kernels/cpu/linear/dot_avx2.h"
#include "kernels/cpu/linear/int16_avx2.h"

#include "kernels/cpu/peak_kernels.h"

#include "kernels/cpu/peak_int16.h"

namespace heddle::kernels::cpu {

extern const PeakKernels kPeakAvx2;
const PeakKernels kPeakAvx2 = {ReadAll, FmaRounds, kFmaFlops, Int8Rounds, kInt8Ops};

}  // namespace heddle::kernels::cpu
