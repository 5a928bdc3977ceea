// Products of BF16 weights; see linear_bulk.cuh.
#include "kernels/cuda/linear/linear_bulk_launch.cuh"

namespace heddle::kernels::cuda {

Error LaunchLinearBulk(const LinearParams& linear, int32_t num_multiprocessors, Stream stream) {
  BulkParams params;
  params.linear = linear;
  const TiledMatrix x = {.data = linear.x.data,
                         .rows = linear.x.rows,
                         .cols = linear.x.cols,
                         .row_stride = linear.x.stride};
  return bulk::ForXRows<kBulkBlockRows>(linear.x.rows, [&]<int kXRows>() {
    return bulk::LaunchShaped<bulk::Shape<kXRows, WeightLayout::kBF16>>(
        params, x, num_multiprocessors, stream);
  });
}

}  // namespace heddle::kernels::cuda
