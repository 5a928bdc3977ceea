// Scores of positions for attention over chosen ones, of the level of vec_portable.h.
#include "kernels/cpu/vec/vec_portable.h"

#include "kernels/cpu/vec/vec_math.h"

#include "kernels/cpu/attention/attention_kernels.h"

#include "kernels/cpu/selection_kernels.h"

namespace heddle::kernels::cpu {

extern const SelectionKernels kSelectionPortable;
const SelectionKernels kSelectionPortable = kSelectionKernels;

}  // namespace heddle::kernels::cpu
