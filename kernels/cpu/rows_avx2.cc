// Row kernels of the level of vec_avx2.h.
#include "kernels/cpu/vec/vec_avx2.h"

#include "kernels/cpu/vec/vec_math.h"

#include "kernels/cpu/row_kernels.h"

namespace heddle::kernels::cpu {

extern const RowKernels kRowsAvx2;
const RowKernels kRowsAvx2 = kRowKernels;

}  // namespace heddle::kernels::cpu
