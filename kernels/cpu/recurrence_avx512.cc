// Kernels for recurrences, of the level of vec_avx512.h.
#include "kernels/cpu/vec/vec_avx512.h"

#include "kernels/cpu/vec/vec_math.h"

#include "kernels/cpu/recurrence_kernels.h"

namespace heddle::kernels::cpu {

extern const RecurrenceKernels kRecurrenceAvx512;
const RecurrenceKernels kRecurrenceAvx512 = kRecurrenceKernels;

}  // namespace heddle::kernels::cpu
