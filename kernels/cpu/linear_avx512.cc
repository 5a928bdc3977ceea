// Linear kernels for AVX-512 with VNNI. 32-row panels.
#include "kernels/cpu/vec_avx512.h"

#include "kernels/cpu/vec_math.h"

#include "kernels/cpu/linear_float.h"

#include "kernels/cpu/linear_int8.h"

#include "kernels/cpu/dot_avx512.h"

#include "kernels/cpu/linear_dot.h"

#include "kernels/cpu/block_parts.h"

#include "kernels/cpu/linear_shared.h"

namespace heddle::kernels::cpu {
namespace {

template <int... kSizes>
constexpr FormatKernels MakeQ80() {
  FormatKernels made = MakeFormat<Q80DotPanel, kSizes...>(TileKind::kInt8);
  made.expand_tiles = 16;
  made.expanded_bytes = ExpandedQ80::Bytes;
  made.expand = ExpandedQ80::Expand;
  int i = 0;
  ((made.multiply_expanded[i++] = ExpandedQ80::Multiply<kSizes>), ...);
  return made;
}

}  // namespace

// 12 x 2 F32 sums fill the 32 registers. The integer kernels keep two sets of sums: 8 x 2 of them
// spill a little, but make one pass over the weights for 8 rows; measured equal to 6 x 2 at 512
// rows.
extern const LinearKernels kLinearAvx512;
const LinearKernels kLinearAvx512 = {
    kPanelRows,
    {{5, {1, 2, 4, 8, 12}, PrepareFloatTile}, {3, {1, 2, 4}, PrepareRoundedTile<Int8Tile>}},
    {MakeFormat<F32Panel, 1, 2, 4, 8, 12>(TileKind::kFloat),
     MakeFormat<F16Panel, 1, 2, 4, 8, 12>(TileKind::kFloat),
     MakeFormat<BF16Panel, 1, 2, 4, 8, 12>(TileKind::kFloat), MakeQ80<1, 2, 4>(),
     MakeShared<kQ40Traits, BlockPanel<Q40>, 1, 2, 4, 6>()},
    FinishPanel,
    &kBlocksAvx512,
    /*bf16_tile=*/{}};

}  // namespace heddle::kernels::cpu
