// Products with the blocked formats for AVX2 with FMA and F16C.
#include "kernels/cpu/vec/vec_avx2.h"

#include "kernels/cpu/vec/vec_math.h"

#include "kernels/cpu/linear/linear_float.h"

#include "kernels/cpu/linear/linear_int8.h"

#include "kernels/cpu/linear/dot_avx2.h"

#include "kernels/cpu/linear/block_floats.h"

#include "kernels/cpu/linear/int16_avx2.h"

#include "kernels/cpu/linear/sums16_codes.h"

#include "kernels/cpu/linear/pairs_tile_avx2.h"
#include "kernels/cpu/linear/sums16_tile_avx2.h"

#include "kernels/cpu/linear/pairs.h"
#include "kernels/cpu/linear/sums16.h"

#include "kernels/cpu/linear/linear_blocks16.h"

namespace heddle::kernels::cpu {

extern const BlockKernels kBlocksAvx2;
const BlockKernels kBlocksAvx2 = MakeBlockKernels16(
    {4, {1, 2, 4, 8}, PrepareSums16Tile, ManyRows{9, 4}}, TileSizes<1, 2, 4, 8>(),
    TileSizes<1, 2, 3, 4, 6, 8>(), TileSizes<1, 2, 4, 6>());

}  // namespace heddle::kernels::cpu
