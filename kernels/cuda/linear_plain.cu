// Matrix product for any shape, and conversion of packed weights to BF16.
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/weight_element.cuh"

namespace heddle::kernels::cuda {
namespace {

constexpr int kWarps = 4;

// A warp per output.
template <typename T, DType kFormat>
HEDDLE_KERNEL LinearPlainKernel(HEDDLE_PARAMS(LinearParams, p)) {
  const int64_t r = static_cast<int64_t>(BlockX()) * kWarps + WarpIndex();
  const int64_t t = BlockY();
  if (r >= OutputCols(p)) return;
  const T* x = p.x.row<T>(t);
  float y = DotRow<T, kFormat>(p.weight, x, r);
  float y_up = p.epilogue == Epilogue::kGated ? DotRow<T, kFormat>(p.weight, x, r + p.half) : 0.0f;
  if (Lane() == 0) StoreOutput<T>(p, t, r, y, y_up);
}

struct DequantizeParams {
  DeviceWeight weight;
  int64_t first;
  uint16_t* out;
  int64_t out_stride;
};

template <DType kFormat>
HEDDLE_KERNEL DequantizeKernel(HEDDLE_PARAMS(DequantizeParams, p)) {
  uint16_t* out = p.out + BlockX() * p.out_stride;
  for (int64_t k = ThreadX(); k < p.out_stride; k += ThreadCount()) {
    float value = k < p.weight.cols ? WeightElement<kFormat>(p.weight, p.first + BlockX(), k) : 0;
    out[k] = RoundTo(value, BFloat16()).bits;
  }
}

}  // namespace

Error LaunchLinearPlain(const LinearParams& params, DType act, Stream stream) {
  const LaunchShape shape = {.grid_x = CeilDiv(OutputCols(params), kWarps),
                             .grid_y = static_cast<int>(params.x.rows),
                             .threads = 32 * kWarps};
  return ForActivation(act, [&]<typename T>(T) {
    return ForFormat(params.weight.format, [&]<DType kFormat>() {
      return Launch(LinearPlainKernel<T, kFormat>, shape, stream, params);
    });
  });
}

Error LaunchDequantize(const DeviceWeight& weight, int64_t first, int64_t count, uint16_t* out,
                       Stream stream) {
  const DequantizeParams params = {weight, first, out, (weight.cols + 31) / 32 * 32};
  const LaunchShape shape = {.grid_x = static_cast<int>(count), .threads = 256};
  return ForFormat(weight.format, [&]<DType kFormat>() {
    return Launch(DequantizeKernel<kFormat>, shape, stream, params);
  });
}

}  // namespace heddle::kernels::cuda
