// What a library's matrix product leaves to do: scales, adapters, bias, activation, gate, residual.
// Reads the product, [n, weight rows], and stores the outputs; memory-bound.
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/launch.cuh"

namespace heddle::kernels::cuda {
namespace {

constexpr int kThreads = 256;

struct EpilogueParams {
  LinearParams linear;
  LibraryProduct product;
};

HEDDLE_DEVICE float SumOf(int32_t value) { return static_cast<float>(value); }
HEDDLE_DEVICE float SumOf(float value) { return value; }
HEDDLE_DEVICE float SumOf(BFloat16 value) { return ToFloat(value); }

// Product of row t of x and row r of the weight.
template <typename T>
HEDDLE_DEVICE float ProductAt(const LibraryProduct& product, int64_t t, int64_t r) {
  const float sum = SumOf(product.sums.row<T>(t)[r]);
  if (product.x_scales == nullptr) return sum;
  return sum * product.x_scales[t] * product.w_scales[r];
}

template <typename T>
HEDDLE_KERNEL EpilogueKernel(HEDDLE_PARAMS(EpilogueParams, p)) {
  const int64_t r = static_cast<int64_t>(BlockX()) * kThreads + ThreadX();
  const int64_t t = BlockY();
  if (r >= OutputCols(p.linear)) return;
  const bool gated = p.linear.epilogue == Epilogue::kGated;
  const float up = gated ? ProductAt<T>(p.product, t, r + p.linear.half) : 0.0f;
  StoreOutput<BFloat16>(p.linear, t, r, ProductAt<T>(p.product, t, r), up);
}

}  // namespace

Error LaunchEpilogue(const LinearParams& params, const LibraryProduct& product, Stream stream) {
  const LaunchShape shape = {.grid_x = CeilDiv(OutputCols(params), kThreads),
                             .grid_y = static_cast<int>(params.x.rows),
                             .threads = kThreads};
  const EpilogueParams all = {params, product};
  switch (product.type) {
    case LibraryProduct::Type::kF32:
      return Launch(EpilogueKernel<float>, shape, stream, all);
    case LibraryProduct::Type::kInt32:
      return Launch(EpilogueKernel<int32_t>, shape, stream, all);
    default:
      return Launch(EpilogueKernel<BFloat16>, shape, stream, all);
  }
}

}  // namespace heddle::kernels::cuda
