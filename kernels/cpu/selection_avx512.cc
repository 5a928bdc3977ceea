// Scores of positions for attention over chosen ones, of the level of vec_avx512.h.
#include "kernels/cpu/vec/vec_avx512.h"

#include "kernels/cpu/vec/vec_math.h"

#include "kernels/cpu/attention/attention_kernels.h"

#include "kernels/cpu/selection_kernels.h"

namespace heddle::kernels::cpu {

extern const SelectionKernels kSelectionAvx512;
const SelectionKernels kSelectionAvx512 = kSelectionKernels;

}  // namespace heddle::kernels::cpu
