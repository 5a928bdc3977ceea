// Products with the blocked formats for AVX2 with FMA and F16C.
#include "kernels/cpu/vec/vec_avx2.h"

#include "kernels/cpu/vec/vec_math.h"

#include "kernels/cpu/linear/linear_float.h"

#include "kernels/cpu/linear/linear_int8.h"

#include "kernels/cpu/linear/dot_avx2.h"

#include "kernels/cpu/linear/block_floats.h"

#include "kernels/cpu/linear/codes_avx2.h"

#include "kernels/cpu/linear/pairs_tile_avx2.h"
#include "kernels/cpu/linear/sums16_tile_avx2.h"

#include "kernels/cpu/linear/pairs_avx2.h"
#include "kernels/cpu/linear/sums16_avx2.h"

namespace heddle::kernels::cpu {
namespace {

template <BlockFormat kFormat>
constexpr FormatKernels kSums16 =
    MakeSums16<kTraitsOf<kFormat>, BlockLayout<kFormat>>(TileSizes<1, 2, 4, 8>());
template <BlockFormat kFormat>
constexpr FormatKernels kTables =
    MakeExpandablePairs<kTraitsOf<kFormat>, BlockLayout<kFormat>>(TileSizes<1, 2, 3, 4, 6, 8>());
template <BlockFormat kFormat>
constexpr FormatKernels kBytes =
    MakePairs<kTraitsOf<kFormat>, BlockLayout<kFormat>, PackedBlock<kTraitsOf<kFormat>>>(
        TileSizes<1, 2, 3, 4, 6, 8>());
template <BlockFormat kFormat>
constexpr FormatKernels kFloats = MakeFloats<kFormat>(TileSizes<1, 2, 4, 6>());

}  // namespace

extern const BlockKernels kBlocksAvx2;
const BlockKernels kBlocksAvx2 = {{4, {1, 2, 4, 8}, PrepareSums16Tile, ManyRows{9, 4}},
                                  {kSums16<BlockFormat::kQ4_1>,    kSums16<BlockFormat::kQ5_0>,
                                   kSums16<BlockFormat::kQ5_1>,    kSums16<BlockFormat::kQ2_K>,
                                   kSums16<BlockFormat::kQ3_K>,    kSums16<BlockFormat::kQ4_K>,
                                   kSums16<BlockFormat::kQ5_K>,    kSums16<BlockFormat::kQ6_K>,
                                   kTables<BlockFormat::kIQ4_NL>,  kTables<BlockFormat::kIQ4_XS>,
                                   kSums16<BlockFormat::kMXFP4>,   kSums16<BlockFormat::kInt4G32>,
                                   kSums16<BlockFormat::kInt4G64>, kSums16<BlockFormat::kInt4G128>,
                                   kBytes<BlockFormat::kInt8G32>,  kBytes<BlockFormat::kInt8G128>,
                                   kFloats<BlockFormat::kF8G32>,   kFloats<BlockFormat::kF8G128>,
                                   kFloats<BlockFormat::kNF4>,     kSums16<BlockFormat::kTQ2_0>,
                                   kSums16<BlockFormat::kNVFP4>,   kFloats<BlockFormat::kFP4>,
                                   kTables<BlockFormat::kIQ1>,     kTables<BlockFormat::kIQ2>,
                                   kTables<BlockFormat::kIQ3XXS>,  kTables<BlockFormat::kIQ3S>}};

}  // namespace heddle::kernels::cpu
