// Kernels for RWKV-7's time mix, of the level of vec_portable.h.
#include "kernels/cpu/vec/vec_portable.h"

#include "kernels/cpu/vec/vec_math.h"

#include "kernels/cpu/wkv_kernels.h"

namespace heddle::kernels::cpu {

extern const WkvKernels kWkvPortable;
const WkvKernels kWkvPortable = kWkvKernels;

}  // namespace heddle::kernels::cpu
