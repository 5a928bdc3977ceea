// Products with the blocked formats for AVX2 with VNNI.
#include "kernels/cpu/vec/vec_avx2.h"

#include "kernels/cpu/vec/vec_math.h"

#include "kernels/cpu/linear/linear_float.h"

#include "kernels/cpu/linear/linear_int8.h"

#include "kernels/cpu/linear/dot_avx2.h"

#include "kernels/cpu/linear/linear_blocks.h"

namespace heddle::kernels::cpu {

// 4 x 2 integer sums and as many totals are all 16 registers, so that some totals are in memory.
// Tiles of 4 rows cost less than those of 2 x 2, which pass the codes twice: 5 to 8 percent of the
// peak.
extern const BlockKernels kBlocksAvx2Vnni;
const BlockKernels kBlocksAvx2Vnni =
    MakeBlockKernels(TileSizes<1, 2, 4>(), TileSizes<1, 2, 4>(), TileSizes<1, 2, 4, 6>());

}  // namespace heddle::kernels::cpu
