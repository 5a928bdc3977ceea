// Kernels for RWKV-7's time mix, of the level of vec_avx512.h.
#include "kernels/cpu/vec/vec_avx512.h"

#include "kernels/cpu/vec/vec_math.h"

#include "kernels/cpu/wkv_kernels.h"

namespace heddle::kernels::cpu {

extern const WkvKernels kWkvAvx512;
const WkvKernels kWkvAvx512 = kWkvKernels;

}  // namespace heddle::kernels::cpu
