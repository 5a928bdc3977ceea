// Matrix product for any shape, and conversion of packed weights to BF16.
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/weight_element.cuh"

namespace heddle::kernels::cuda {
namespace {

constexpr int kWarps = 4;
// Rows of x in BlockY; more of them in BlockZ, as both are 16 bits wide.
constexpr int kGridRows = 32768;

// A warp per output.
template <typename T, WeightLayout kLayout>
HEDDLE_KERNEL LinearPlainKernel(HEDDLE_PARAMS(LinearParams, p)) {
  StartInTurn();
  const int64_t r = static_cast<int64_t>(BlockX()) * kWarps + WarpIndex();
  const int64_t t = static_cast<int64_t>(BlockZ()) * kGridRows + BlockY();
  if (r >= OutputCols(p) || t >= p.x.rows) return;
  const T* x = p.x.row<T>(t);
  float y = DotRow<T, kLayout>(p.weight, x, r);
  float y_up = p.epilogue == Epilogue::kGated ? DotRow<T, kLayout>(p.weight, x, r + p.half) : 0.0f;
  if (Lane() == 0) StoreOutput<T>(p, t, r, y, y_up);
}

struct DequantizeParams {
  DeviceWeight weight;
  int64_t first;
  uint16_t* out;
  int64_t out_stride;
};

// A thread takes the codes of one lane in one block of 32 columns, 8 of them. Scales are applied in
// F32 and rounded once.
template <WeightLayout kLayout>
HEDDLE_KERNEL DequantizeKernel(HEDDLE_PARAMS(DequantizeParams, p)) {
  StartInTurn();
  constexpr LayoutTraits kTraits = TraitsOf(kLayout);
  const int64_t r = p.first + BlockX();
  uint16_t* out = p.out + BlockX() * p.out_stride;
  for (int64_t i = ThreadX(); i < p.out_stride / 8; i += ThreadCount()) {
    HEDDLE_UNROLL
    for (int part = 0; part < kTraits.subs(); ++part) {
      // Neighbouring columns: 8, or twice 4 where scales are per 16 columns.
      constexpr int kCount = 8 / kTraits.subs();
      const int64_t k = kTraits.is_fine ? i / 4 * 32 + 16 * part + i % 4 * 4 : i * 8;
      Words<kCount / 2> packed;
      HEDDLE_UNROLL
      for (int j = 0; j < kCount / 2; ++j) {
        float pair[2];
        HEDDLE_UNROLL
        for (int e = 0; e < 2; ++e) {
          const int64_t column = k + 2 * j + e;
          pair[e] = column < p.weight.cols ? WeightElement<kLayout>(p.weight, r, column) : 0.0f;
        }
        packed.word[j] = Pack2(pair[0], pair[1], BFloat16());
      }
      *reinterpret_cast<Words<kCount / 2>*>(out + k) = packed;
    }
  }
}

}  // namespace

Error LaunchLinearPlain(const LinearParams& params, DType act, Stream stream) {
  const LaunchShape shape = {
      .grid_x = CeilDiv(OutputCols(params), kWarps),
      .grid_y = static_cast<int>(params.x.rows < kGridRows ? params.x.rows : kGridRows),
      .grid_z = CeilDiv(params.x.rows, kGridRows),
      .threads = 32 * kWarps};
  return ForActivation(act, [&]<typename T>(T) {
    return ForLayout(params.weight.layout, [&]<WeightLayout kLayout>() {
      return Launch(LinearPlainKernel<T, kLayout>, shape, stream, params);
    });
  });
}

Error LaunchDequantize(const DeviceWeight& weight, int64_t first, int64_t count, uint16_t* out,
                       Stream stream) {
  const DequantizeParams params = {weight, first, out, (weight.cols + 31) / 32 * 32};
  const LaunchShape shape = {.grid_x = static_cast<int>(count), .threads = 256};
  return ForLayout(weight.layout, [&]<WeightLayout kLayout>() {
    return Launch(DequantizeKernel<kLayout>, shape, stream, params);
  });
}

}  // namespace heddle::kernels::cuda
