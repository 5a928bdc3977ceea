// The kernels that differ between AVX2 with VNNI and AVX2 alone: Q8_0 and Q4_0. 16-row panels.
#include "kernels/cpu/vec/vec_avx2.h"

#include "kernels/cpu/vec/vec_math.h"

#include "kernels/cpu/linear/linear_float.h"

#include "kernels/cpu/linear/linear_int8.h"

#include "kernels/cpu/linear/dot_avx2.h"

#include "kernels/cpu/linear/linear_dot.h"

#include "kernels/cpu/linear/block_parts.h"

#include "kernels/cpu/linear/linear_shared.h"

namespace heddle::kernels::cpu {

// 4 x 2 integer sums stay in the 16 registers through a block, and so do half of as many totals,
// which are needed once per block.
extern const Int8DotKernels kInt8DotAvx2Vnni;
const Int8DotKernels kInt8DotAvx2Vnni = {{3, {1, 2, 4}, PrepareRoundedTile<Int8Tile>},
                                         MakeFormat<Q80DotPanel, 1, 2, 4>(TileKind::kInt8),
                                         MakeShared<kQ40Traits, BlockPanel<Q40>, 1, 2, 4>(),
                                         &kBlocksAvx2Vnni};

}  // namespace heddle::kernels::cpu
