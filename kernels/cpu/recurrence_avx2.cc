// Kernels for recurrences, of the level of vec_avx2.h.
#include "kernels/cpu/vec/vec_avx2.h"

#include "kernels/cpu/vec/vec_math.h"

#include "kernels/cpu/recurrence_kernels.h"

namespace heddle::kernels::cpu {

extern const RecurrenceKernels kRecurrenceAvx2;
const RecurrenceKernels kRecurrenceAvx2 = kRecurrenceKernels;

}  // namespace heddle::kernels::cpu
