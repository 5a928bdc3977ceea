// Scores of positions for attention over chosen ones, of the level of vec_avx2.h.
#include "kernels/cpu/vec/vec_avx2.h"

#include "kernels/cpu/vec/vec_math.h"

#include "kernels/cpu/attention/attention_kernels.h"

#include "kernels/cpu/selection_kernels.h"

namespace heddle::kernels::cpu {

extern const SelectionKernels kSelectionAvx2;
const SelectionKernels kSelectionAvx2 = kSelectionKernels;

}  // namespace heddle::kernels::cpu
