// Linear kernels for AVX2 with FMA and F16C. 16-row panels.
#include "kernels/cpu/vec/vec_avx2.h"

#include "kernels/cpu/vec/vec_math.h"

#include "kernels/cpu/linear/linear_float.h"

#include "kernels/cpu/linear/linear_int8.h"

#include "kernels/cpu/linear/dot_avx2.h"

#include "kernels/cpu/linear/block_floats.h"
#include "kernels/cpu/linear/row_pairs.h"

#include "kernels/cpu/linear/expanded_floats.h"

#include "kernels/cpu/linear/int16_avx2.h"

#include "kernels/cpu/linear/sums16_codes.h"

#include "kernels/cpu/linear/pairs_tile_avx2.h"
#include "kernels/cpu/linear/sums16_tile_avx2.h"

#include "kernels/cpu/linear/pairs.h"
#include "kernels/cpu/linear/sums16.h"

namespace heddle::kernels::cpu {

// 6 x 2 F32 sums fill the 16 registers, and so do 4 x 2 or 8 x 1 integer sums.
// 8 KB ahead, one to four rows take up to a quarter less time than 4 KB ahead on Zen 5; 16 KB
// brings no more.
extern const LinearKernels kLinearAvx2;
const LinearKernels kLinearAvx2 = {
    kPanelRows,
    {{4, {1, 2, 4, 6}, PrepareFloatTile}, {6, {1, 2, 3, 4, 6, 8}, PreparePairsTile}},
    {MakeFormat<F32Panel, 1, 2, 4, 6>(TileKind::kFloat), MakeWidened<F16Panel, 1, 2, 4, 6>(),
     MakeWidened<BF16Panel, 1, 2, 4, 6>(),
     MakePairs<kQ80Traits, BlockPanel<Q80<0x80>>, Q80Codes>(TileSizes<1, 2, 3, 4, 6, 8>()),
     MakeSums16<kQ40Traits, BlockPanel<Q40>>(TileSizes<1, 2, 4, 8>())},
    FinishPanel,
    JoinSums,
    &kBlocksAvx2,
    /*bf16_tile=*/{},
    /*bf16_rows_tile=*/{},
    /*release_tiles=*/nullptr,
    /*finish_tiles=*/nullptr,
    /*few_rows_ahead=*/8 * 1024};

}  // namespace heddle::kernels::cpu
