// Products of FP8 weights and FP8 rows of x; see linear_bulk.cuh.
#include "kernels/cuda/linear/linear_bulk_launch.cuh"

namespace heddle::kernels::cuda {

Error LaunchLinearBulkCodes(const LinearParams& linear, const CodeRows& x,
                            int32_t num_multiprocessors, Stream stream) {
  BulkParams params;
  params.linear = linear;
  const TiledMatrix codes = {.data = x.codes, .rows = linear.x.rows, .cols = x.row_bytes};
  if (linear.weight.layout == WeightLayout::kF8Block) {
    params.x_scales = x.scales;
    params.x_scales_stride = x.scales_stride;
    return bulk::ForXRows<kBulkTiledRows>(linear.x.rows, [&]<int kXRows>() {
      return bulk::LaunchShaped<bulk::Shape<kXRows, WeightLayout::kF8Block>>(
          params, codes, num_multiprocessors, stream);
    });
  }
  params.linear.x_scales = x.scales;
  return bulk::ForXRows<kBulkBlockRows>(linear.x.rows, [&]<int kXRows>() {
    return bulk::LaunchShaped<bulk::Shape<kXRows, WeightLayout::kF8Row>>(
        params, codes, num_multiprocessors, stream);
  });
}

}  // namespace heddle::kernels::cuda
