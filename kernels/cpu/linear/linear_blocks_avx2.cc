// Products with the blocked formats for AVX2 with FMA and F16C.
#include "kernels/cpu/vec/vec_avx2.h"

#include "kernels/cpu/vec/vec_math.h"

#include "kernels/cpu/linear/linear_float.h"

#include "kernels/cpu/linear/linear_int8.h"

#include "kernels/cpu/linear/dot_avx2.h"

#include "kernels/cpu/linear/linear_blocks.h"

namespace heddle::kernels::cpu {

// 2 x 2 integer sums and as many totals: half of the 16 registers.
extern const BlockKernels kBlocksAvx2;
const BlockKernels kBlocksAvx2 =
    MakeBlockKernels(TileSizes<1, 2>(), TileSizes<1, 2>(), TileSizes<1, 2, 4, 6>());

}  // namespace heddle::kernels::cpu
