// The division of a product into blocks; see linear_bulk.cuh.
#include "kernels/cuda/linear/linear_bulk.cuh"

namespace heddle::kernels::cuda {
namespace bulk {
namespace {

// In units of a stage, which takes 1 us: starting takes 2, and adding up 3 to 5 (two rounds of
// storing sums, 64 to 208 KiB each way).
template <int kXRows>
constexpr sums::SplitCosts kSplitCosts = {.start = 2, .shared = 2 + kXRows / 64, .each = 0};

template <int kXRows>
Error LaunchShaped(const LinearParams& linear, int multiprocessors, Stream stream) {
  using S = Shape<kXRows>;
  const bool gated = linear.epilogue == Epilogue::kGated;
  BulkParams params;
  params.linear = linear;
  Error error = EncodeTensorMap({.data = linear.weight.data,
                                 .rows = linear.weight.rows,
                                 .cols = linear.weight.cols,
                                 .row_stride = linear.weight.row_bytes / 2,
                                 .box_rows = S::kUnit},
                                &params.weights);
  if (error != kSuccess) return error;
  error = EncodeTensorMap({.data = linear.x.data,
                           .rows = linear.x.rows,
                           .cols = linear.x.cols,
                           .row_stride = linear.x.stride,
                           .box_rows = kXRows},
                          &params.x);
  if (error != kSuccess) return error;
  const int chunks = CeilDiv(linear.x.rows, kXRows);
  const int weights = CeilDiv(OutputCols(linear), gated ? S::kRows / 2 : S::kRows);
  const int stages = CeilDiv(linear.weight.cols, S::kCols);
  const int wanted = sums::PartsOf<S>(linear, int64_t{chunks} * weights, stages, multiprocessors,
                                      kSplitCosts<kXRows>);
  params.stages = CeilDiv(stages, wanted);
  params.parts = CeilDiv(stages, params.stages);
  const LaunchShape shape = {.grid_x = chunks,
                             .grid_y = weights,
                             .grid_z = params.parts,
                             .threads = kThreads,
                             .shared_bytes = Memory<S>::kSharedBytes};
  return Launch(LinearBulkKernel<S>, shape, stream, params);
}

}  // namespace
}  // namespace bulk

Error LaunchLinearBulk(const LinearParams& params, int32_t num_multiprocessors, Stream stream) {
  const auto launch = [&]<int kXRows>() {
    return bulk::LaunchShaped<kXRows>(params, num_multiprocessors, stream);
  };
  const int chunks = CeilDiv(params.x.rows, kBulkBlockRows);
  const int rows = CeilDiv(params.x.rows, chunks);
  if (rows <= 64) return launch.operator()<64>();
  if (rows <= 96) return launch.operator()<96>();
  if (rows <= 128) return launch.operator()<128>();
  if (rows <= 160) return launch.operator()<160>();
  return launch.operator()<kBulkBlockRows>();
}

}  // namespace heddle::kernels::cuda
