// Products with the blocked formats for AVX2 with VNNI.
#include "kernels/cpu/vec/vec_avx2.h"

#include "kernels/cpu/vec/vec_math.h"

#include "kernels/cpu/linear/linear_float.h"

#include "kernels/cpu/linear/linear_int8.h"

#include "kernels/cpu/linear/dot_avx2.h"

#include "kernels/cpu/linear/linear_blocks.h"

namespace heddle::kernels::cpu {

// The same numbers as without VNNI, so that the tables of both levels are alike.
extern const BlockKernels kBlocksAvx2Vnni;
const BlockKernels kBlocksAvx2Vnni =
    MakeBlockKernels(TileSizes<1, 2>(), TileSizes<1, 2, 4>(), TileSizes<1, 2, 4, 6>());

}  // namespace heddle::kernels::cpu
