// Row kernels of the level of vec_portable.h.
#include "kernels/cpu/vec/vec_portable.h"

#include "kernels/cpu/vec/vec_math.h"

#include "kernels/cpu/row_kernels.h"

namespace heddle::kernels::cpu {

extern const RowKernels kRowsPortable;
const RowKernels kRowsPortable = kRowKernels;

}  // namespace heddle::kernels::cpu
