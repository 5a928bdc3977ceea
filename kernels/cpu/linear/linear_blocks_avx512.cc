// Products with the blocked formats for AVX-512 with VNNI.
#include "kernels/cpu/vec/vec_avx512.h"

#include "kernels/cpu/vec/vec_math.h"

#include "kernels/cpu/linear/linear_float.h"

#include "kernels/cpu/linear/linear_int8.h"

#include "kernels/cpu/linear/dot_avx512.h"

#include "kernels/cpu/linear/linear_blocks.h"

namespace heddle::kernels::cpu {

// 6 x 2 integer sums and as many totals leave room for codes and scales in 32 registers. They are 2
// to 8 percent faster than 4 rows, and 5 to 8 percent faster than 8 rows, although 8 rows need one
// pass.
extern const BlockKernels kBlocksAvx512;
const BlockKernels kBlocksAvx512 =
    MakeBlockKernels(TileSizes<1, 2, 4, 6, 8>(), TileSizes<1, 2, 4, 8>(),
                     TileSizes<1, 2, 4, 8, 12>(), ManyRows{16, 6});

}  // namespace heddle::kernels::cpu
