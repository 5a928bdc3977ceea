// Attention kernels of the level of vec_avx512.h.
#include "kernels/cpu/vec/vec_avx512.h"

#include "kernels/cpu/vec/vec_math.h"

#include "kernels/cpu/attention/attention_kernels.h"

namespace heddle::kernels::cpu {

extern const AttentionKernels kAttentionAvx512;
const AttentionKernels kAttentionAvx512 = kAttentionKernels;

}  // namespace heddle::kernels::cpu
