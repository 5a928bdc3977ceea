// Kernels for recurrences, of the level of vec_portable.h.
#include "kernels/cpu/vec/vec_portable.h"

#include "kernels/cpu/vec/vec_math.h"

#include "kernels/cpu/recurrence_kernels.h"

namespace heddle::kernels::cpu {

extern const RecurrenceKernels kRecurrencePortable;
const RecurrenceKernels kRecurrencePortable = kRecurrenceKernels;

}  // namespace heddle::kernels::cpu
