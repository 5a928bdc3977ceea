// Row kernels of the level of vec_avx512.h.
#include "kernels/cpu/vec/vec_avx512.h"

#include "kernels/cpu/vec/vec_math.h"

#include "kernels/cpu/row_kernels.h"

namespace heddle::kernels::cpu {

extern const RowKernels kRowsAvx512;
const RowKernels kRowsAvx512 = kRowKernels;

}  // namespace heddle::kernels::cpu
