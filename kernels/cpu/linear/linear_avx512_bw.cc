// Linear kernels for AVX-512 without VNNI. 32-row panels.
#include "kernels/cpu/vec/vec_avx512.h"

#include "kernels/cpu/vec/vec_math.h"

#include "kernels/cpu/linear/linear_float.h"

#include "kernels/cpu/linear/linear_int8.h"

#include "kernels/cpu/linear/dot_avx512.h"

#include "kernels/cpu/linear/block_floats.h"

#include "kernels/cpu/linear/int16_avx512.h"

#include "kernels/cpu/linear/sums16_codes.h"

#include "kernels/cpu/linear/pairs_tile.h"
#include "kernels/cpu/linear/sums16_tile.h"

#include "kernels/cpu/linear/pairs.h"
#include "kernels/cpu/linear/sums16.h"

namespace heddle::kernels::cpu {

// Tiles of bytes are prepared as the avx2 level does it.
extern const LinearKernels kLinearAvx512Bw;
const LinearKernels kLinearAvx512Bw = {
    kPanelRows,
    {{5, {1, 2, 4, 8, 12}, PrepareFloatTile}, {6, {1, 2, 3, 4, 6, 8}, /*prepare=*/nullptr}},
    {MakeFormat<F32Panel, 1, 2, 4, 8, 12>(TileKind::kFloat),
     MakeFormat<F16Panel, 1, 2, 4, 8, 12>(TileKind::kFloat),
     MakeFormat<BF16Panel, 1, 2, 4, 8, 12>(TileKind::kFloat),
     MakePairs<kQ80Traits, BlockPanel<Q80<0x80>>, Q80Codes>(TileSizes<1, 2, 3, 4, 6, 8>()),
     MakeSums16<kQ40Traits, BlockPanel<Q40>>(TileSizes<1, 2, 4, 8>())},
    FinishPanel,
    JoinSums,
    &kBlocksAvx512Bw,
    /*bf16_tile=*/{}};

}  // namespace heddle::kernels::cpu
