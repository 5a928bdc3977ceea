// What a library's matrix product leaves to do: bias, activation, gate, residual. Reads the product
// in BF16, [n, weight rows], and stores the outputs; memory-bound.
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/launch.cuh"

namespace heddle::kernels::cuda {
namespace {

constexpr int kThreads = 256;

struct EpilogueParams {
  LinearParams linear;
  Tensor product;
};

HEDDLE_KERNEL EpilogueKernel(HEDDLE_PARAMS(EpilogueParams, p)) {
  const int64_t r = static_cast<int64_t>(BlockX()) * kThreads + ThreadX();
  const int64_t t = BlockY();
  if (r >= OutputCols(p.linear)) return;
  const BFloat16* row = p.product.row<BFloat16>(t);
  const bool gated = p.linear.epilogue == Epilogue::kGated;
  const float up = gated ? ToFloat(row[r + p.linear.half]) : 0.0f;
  StoreOutput<BFloat16>(p.linear, t, r, ToFloat(row[r]), up);
}

}  // namespace

Error LaunchEpilogue(const LinearParams& params, Tensor product, Stream stream) {
  const LaunchShape shape = {.grid_x = CeilDiv(OutputCols(params), kThreads),
                             .grid_y = static_cast<int>(params.x.rows),
                             .threads = kThreads};
  return Launch(EpilogueKernel, shape, stream, EpilogueParams{params, product});
}

}  // namespace heddle::kernels::cuda
