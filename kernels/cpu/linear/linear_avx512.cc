// Linear kernels for AVX-512 with VNNI. 32-row panels.
#include "kernels/cpu/vec/vec_avx512.h"

#include "kernels/cpu/vec/vec_math.h"

#include "kernels/cpu/linear/linear_float.h"

#include "kernels/cpu/linear/linear_int8.h"

#include "kernels/cpu/linear/dot_avx512.h"

#include "kernels/cpu/linear/linear_dot.h"

#include "kernels/cpu/linear/block_parts.h"

#include "kernels/cpu/linear/linear_shared.h"

namespace heddle::kernels::cpu {
namespace {

// Expanding takes a third of the time of a tile of 4 rows, and saves a fiftieth.
template <int... kSizes>
constexpr FormatKernels MakeQ80() {
  using Panel = ExpandingQ80Panel;
  return MakeExpandable<Panel, Panel, PackedQ80, ExpandedQ80, kSizes...>(TileKind::kInt8,
                                                                         /*expand_tiles=*/16);
}

}  // namespace

// 12 x 2 F32 sums fill the 32 registers. The integer kernels keep two sets of sums: 4 x 2 of them
// are 2 percent faster than 8 x 2, which spill a little but make one pass over the weights for 8
// rows (a quarter faster than two passes).
extern const LinearKernels kLinearAvx512;
const LinearKernels kLinearAvx512 = {
    kPanelRows,
    {{5, {1, 2, 4, 8, 12}, PrepareFloatTile},
     {4, {1, 2, 4, 8}, PrepareRoundedTile<Int8Tile>, ManyRows{9, 4}}},
    {MakeFormat<F32Panel, 1, 2, 4, 8, 12>(TileKind::kFloat),
     MakeFormat<F16Panel, 1, 2, 4, 8, 12>(TileKind::kFloat),
     MakeFormat<BF16Panel, 1, 2, 4, 8, 12>(TileKind::kFloat), MakeQ80<1, 2, 4, 8>(),
     MakeShared<kQ40Traits, BlockPanel<Q40>, 1, 2, 4, 6, 8>()},
    FinishPanel,
    JoinSums,
    &kBlocksAvx512,
    /*bf16_tile=*/{}};

}  // namespace heddle::kernels::cpu
