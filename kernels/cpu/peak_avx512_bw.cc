// Peak rates of the avx512_bw level: maddubs, madd and an addition for int8.
#include "kernels/cpu/vec/vec_avx512.h"

#include "kernels/cpu/vec/vec_math.h"

#include "kernels/cpu/linear/dot_avx512.h"
#include "kernels/cpu/linear/int16_avx512.h"

#include "kernels/cpu/peak_kernels.h"

#include "kernels/cpu/peak_int16.h"

namespace heddle::kernels::cpu {

extern const PeakKernels kPeakAvx512Bw;
const PeakKernels kPeakAvx512Bw = {ReadAll, FmaRounds, kFmaFlops, Int8Rounds, kInt8Ops};

}  // namespace heddle::kernels::cpu
