// Products of experts in FP8; see linear_bulk_experts.cuh.
#include "kernels/cuda/linear/linear_bulk_experts.cuh"

#include "kernels/cuda/linear/linear_bulk_launch.cuh"

namespace heddle::kernels::cuda {
namespace bulk {
namespace {

template <typename S>
Error LaunchExperts(const ExpertLinearParams& experts, const CodeRows& x, int multiprocessors,
                    Stream stream) {
  const LinearParams& linear = experts.linear;
  const bool gated = linear.epilogue == Epilogue::kGated;
  ExpertBulkParams params;
  params.bulk.linear = linear;
  params.bulk.linear.x_scales = x.scales;
  params.bulk.x_scales = x.scales;
  params.bulk.x_scales_stride = x.scales_stride;
  const TiledMatrix codes = {.data = x.codes, .rows = linear.x.rows, .cols = x.row_bytes};
  if (const Error error = EncodeMaps<S>(linear, codes, &params.bulk); error != kSuccess) {
    return error;
  }
  params.bulk.stages = CeilDiv(linear.weight.cols, S::kCols);
  params.groups = experts.groups;
  params.matrix_rows = experts.matrix_rows;
  params.weight_tiles =
      CeilDiv(gated ? linear.half : experts.matrix_rows, gated ? S::kRows / 2 : S::kRows);
  const int64_t tiles = int64_t{experts.groups.max_chunks} * params.weight_tiles;
  const LaunchShape shape = {
      .grid_x = tiles < multiprocessors ? static_cast<int>(tiles) : multiprocessors,
      .threads = kThreads,
      .shared_bytes = ExpertMemory<S>::kSharedBytes};
  return Launch(ExpertBulkKernel<S>, shape, stream, params);
}

}  // namespace
}  // namespace bulk

Error LaunchExpertBulkCodes(const ExpertLinearParams& experts, const CodeRows& x,
                            int32_t num_multiprocessors, Stream stream) {
  if (experts.linear.weight.layout == WeightLayout::kF8Block) {
    using S = bulk::Shape<kBulkTiledRows, WeightLayout::kF8Block, true>;
    return bulk::LaunchExperts<S>(experts, x, num_multiprocessors, stream);
  }
  using S = bulk::Shape<128, WeightLayout::kF8Row, true>;
  return bulk::LaunchExperts<S>(experts, x, num_multiprocessors, stream);
}

}  // namespace heddle::kernels::cuda
