// Peak rates of the portable level, which has no integer products: F32's stand for them.
#include "kernels/cpu/vec/vec_portable.h"

#include "kernels/cpu/vec/vec_math.h"

#include "kernels/cpu/peak_kernels.h"

namespace heddle::kernels::cpu {

extern const PeakKernels kPeakPortable;
const PeakKernels kPeakPortable = {ReadAll, FmaRounds, kFmaFlops, FmaRounds, kFmaFlops};

}  // namespace heddle::kernels::cpu
