// Products with the blocked formats for AVX-512 without VNNI.
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

#include "kernels/cpu/linear/linear_blocks16.h"

namespace heddle::kernels::cpu {

extern const BlockKernels kBlocksAvx512Bw;
const BlockKernels kBlocksAvx512Bw =
    MakeBlockKernels16({4, {1, 2, 4, 8}, /*prepare=*/nullptr, {}}, TileSizes<1, 2, 4, 8>(),
                       TileSizes<1, 2, 3, 4, 6, 8>(), TileSizes<1, 2, 4, 8, 12>());

}  // namespace heddle::kernels::cpu
