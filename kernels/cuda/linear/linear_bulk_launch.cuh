// The division of a product by linear_bulk.cuh into blocks, for its sources, which compile in
// parallel.
#pragma once

#include "kernels/cuda/linear/linear_bulk.cuh"

namespace heddle::kernels::cuda {
namespace bulk {

// In units of a stage, which takes 1 us: starting takes 2, and adding up 3 to 5 (two rounds of
// storing sums, 64 to 208 KiB each way).
template <int kXRows>
constexpr sums::SplitCosts kSplitCosts = {.start = 2, .shared = 2 + kXRows / 64, .each = 0};

// Describes both matrices; x is given without box_rows.
template <typename S>
Error EncodeMaps(const LinearParams& linear, TiledMatrix x, BulkParams* params) {
  constexpr int kBytes = sizeof(typename S::Element);
  const Error error =
      EncodeTensorMap({.data = linear.weight.data,
                       .rows = linear.weight.rows,
                       .cols = kBytes == 1 ? linear.weight.row_bytes : linear.weight.cols,
                       .row_stride = linear.weight.row_bytes / kBytes,
                       .box_rows = S::kUnit,
                       .element_bytes = kBytes},
                      &params->weights);
  if (error != kSuccess) return error;
  x.box_rows = S::kXRows;
  x.element_bytes = kBytes;
  return EncodeTensorMap(x, &params->x);
}

// `linear` has everything but x.
template <typename S>
Error LaunchShaped(BulkParams params, const TiledMatrix& x, int multiprocessors, Stream stream) {
  const LinearParams& linear = params.linear;
  const bool gated = linear.epilogue == Epilogue::kGated;
  if (const Error error = EncodeMaps<S>(linear, x, &params); error != kSuccess) return error;
  const int chunks = CeilDiv(linear.x.rows, S::kXRows);
  const int weights = CeilDiv(OutputCols(linear), gated ? S::kRows / 2 : S::kRows);
  const int stages = CeilDiv(linear.weight.cols, S::kCols);
  const int wanted = sums::PartsOf<S>(linear, int64_t{chunks} * weights, stages, multiprocessors,
                                      kSplitCosts<S::kXRows>);
  params.stages = CeilDiv(stages, wanted);
  params.parts = CeilDiv(stages, params.stages);
  const LaunchShape shape = {.grid_x = chunks,
                             .grid_y = weights,
                             .grid_z = params.parts,
                             .threads = kThreads,
                             .shared_bytes = Memory<S>::kSharedBytes};
  return Launch(LinearBulkKernel<S>, shape, stream, params);
}

// Calls fn with the rows of x of a block, for `n` in blocks of up to kMost.
template <int kMost, typename Fn>
Error ForXRows(int64_t n, Fn fn) {
  const int rows = CeilDiv(n, CeilDiv(n, kMost));
  if (rows <= 64) return fn.template operator()<64>();
  if (rows <= 96) return fn.template operator()<96>();
  if constexpr (kMost > 96) {
    if (rows <= 128) return fn.template operator()<128>();
    if (rows <= 160) return fn.template operator()<160>();
    return fn.template operator()<kMost>();
  }
  return fn.template operator()<96>();
}

}  // namespace bulk
}  // namespace heddle::kernels::cuda
