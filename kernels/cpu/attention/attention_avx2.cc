// Attention kernels of the level of vec_avx2.h.
#include "kernels/cpu/vec/vec_avx2.h"

#include "kernels/cpu/vec/vec_math.h"

#include "kernels/cpu/attention/attention_kernels.h"

namespace heddle::kernels::cpu {

extern const AttentionKernels kAttentionAvx2;
const AttentionKernels kAttentionAvx2 = kAttentionKernels;

}  // namespace heddle::kernels::cpu
