// The kernels of all blocked formats for processors without VNNI.
// REQUIRES: what block_floats.h, pairs.h and sums16.h require.
#pragma once

#include "kernels/cpu/linear/block_floats.h"
#include "kernels/cpu/linear/pairs.h"
#include "kernels/cpu/linear/sums16.h"

namespace heddle::kernels::cpu {
namespace {

template <BlockFormat kFormat, typename Sizes>
constexpr FormatKernels MakeSums(Sizes sizes) {
  return MakeSums16<kTraitsOf<kFormat>, BlockLayout<kFormat>>(sizes);
}
template <BlockFormat kFormat, typename Sizes>
constexpr FormatKernels MakeTables(Sizes sizes) {
  return MakeExpandablePairs<kTraitsOf<kFormat>, BlockLayout<kFormat>>(sizes);
}
template <BlockFormat kFormat, typename Sizes>
constexpr FormatKernels MakeBytes16(Sizes sizes) {
  using Packed = PackedBlock<kTraitsOf<kFormat>>;
  return MakePairs<kTraitsOf<kFormat>, BlockLayout<kFormat>, Packed>(sizes);
}

// In the order of BlockFormat. `sums` are the sizes of `tile`, which is for kInt8Sums16; `pairs`
// and `floats` must be those of the level's kInt8 and kFloat tiles.
template <typename Sums, typename Pairs, typename Floats>
constexpr BlockKernels MakeBlockKernels16(const TileKernels& tile, Sums sums, Pairs pairs,
                                          Floats floats) {
  return {tile,
          {MakeSums<BlockFormat::kQ4_1>(sums),        MakeSums<BlockFormat::kQ5_0>(sums),
           MakeSums<BlockFormat::kQ5_1>(sums),        MakeSums<BlockFormat::kQ2_K>(sums),
           MakeSums<BlockFormat::kQ3_K>(sums),        MakeSums<BlockFormat::kQ4_K>(sums),
           MakeSums<BlockFormat::kQ5_K>(sums),        MakeSums<BlockFormat::kQ6_K>(sums),
           MakeTables<BlockFormat::kIQ4_NL>(pairs),   MakeTables<BlockFormat::kIQ4_XS>(pairs),
           MakeSums<BlockFormat::kMXFP4>(sums),       MakeSums<BlockFormat::kInt4G32>(sums),
           MakeSums<BlockFormat::kInt4G64>(sums),     MakeSums<BlockFormat::kInt4G128>(sums),
           MakeBytes16<BlockFormat::kInt8G32>(pairs), MakeBytes16<BlockFormat::kInt8G128>(pairs),
           MakeFloats<BlockFormat::kF8G32>(floats),   MakeFloats<BlockFormat::kF8G128>(floats),
           MakeFloats<BlockFormat::kNF4>(floats),     MakeSums<BlockFormat::kTQ2_0>(sums),
           MakeSums<BlockFormat::kNVFP4>(sums),       MakeFloats<BlockFormat::kFP4>(floats),
           MakeTables<BlockFormat::kIQ1>(pairs),      MakeTables<BlockFormat::kIQ2>(pairs),
           MakeTables<BlockFormat::kIQ3XXS>(pairs),   MakeTables<BlockFormat::kIQ3S>(pairs)}};
}

}  // namespace
}  // namespace heddle::kernels::cpu
