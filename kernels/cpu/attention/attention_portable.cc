// Attention kernels of the level of vec_portable.h.
#include "kernels/cpu/vec/vec_portable.h"

#include "kernels/cpu/vec/vec_math.h"

#include "kernels/cpu/attention/attention_kernels.h"

namespace heddle::kernels::cpu {

extern const AttentionKernels kAttentionPortable;
const AttentionKernels kAttentionPortable = kAttentionKernels;

}  // namespace heddle::kernels::cpu
