// RMSNorm and LayerNorm with an optional residual add in front. One block per row; the row stays in
// shared memory as F32 between the passes (norm_row.cuh), so global memory sees each element once.
#include "kernels/cuda/primitives/group.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/rows/norm_row.cuh"
#include "kernels/cuda/rows/row_params.h"

namespace heddle::kernels::cuda {
namespace {

// Loads x (plus residual, which is updated) into shared memory; returns this thread's sum.
template <typename T, int kWidth>
HEDDLE_DEVICE float LoadRow(const NormArgs& p, int64_t t, Shared<float> row) {
  using Wide = Group<T, kWidth>;
  const Wide* x = reinterpret_cast<const Wide*>(p.x.row<T>(t));
  Wide* residual = p.residual.data ? reinterpret_cast<Wide*>(p.residual.row<T>(t)) : nullptr;
  float sum = 0;
  const int groups = static_cast<int>(p.x.cols) / kWidth;
  for (int i = ThreadX(); i < groups; i += ThreadCount()) {
    Wide values = x[i];
    if (residual != nullptr) {
      Wide before = residual[i];
      HEDDLE_UNROLL
      for (int j = 0; j < kWidth; ++j) {
        values.item[j] = RoundTo(ToFloat(before.item[j]) + ToFloat(values.item[j]), T());
      }
      residual[i] = values;
    }
    HEDDLE_UNROLL
    for (int j = 0; j < kWidth; ++j) {
      float value = ToFloat(values.item[j]);
      row.Set(j * groups + i, value);
      sum += value;
    }
  }
  return sum;
}

template <typename T, int kWidth>
HEDDLE_KERNEL NormKernel(HEDDLE_PARAMS(NormParams, params)) {
  StartInTurn();
  SharedArena arena;
  Shared<float> scratch = arena.Take<float>(kMaxNormWarps);
  Shared<float> row = arena.Take<float>(static_cast<int>(params.args.x.cols));
  const int64_t t = BlockX();
  const float sum = LoadRow<T, kWidth>(params.args, t, row);
  NormRow<T, kWidth>(params, t, row, sum, scratch);
}

}  // namespace

Error LaunchNorm(const NormArgs& args, const NormAdapters& adapters, DType act, Stream stream) {
  NormParams params = {args, adapters};
  params.args.adapters = nullptr;  // the host's
  const int cols = static_cast<int>(args.x.cols);
  LaunchShape shape = {
      .grid_x = static_cast<int>(args.x.rows),
      .shared_bytes = SharedBytesFor<float>(kMaxNormWarps) + SharedBytesFor<float>(cols)};
  return ForActivation(act, [&]<typename T>(T) {
    constexpr int kWide = 16 / sizeof(T);
    bool wide = IsAligned<T>(args.x, kWide) && IsAligned<T>(args.residual, kWide) &&
                IsAligned<T>(args.out, kWide) &&
                reinterpret_cast<uintptr_t>(args.weight) % 16 == 0 &&
                reinterpret_cast<uintptr_t>(args.bias) % 16 == 0;
    shape.threads = NormThreads(cols / (wide ? kWide : 1));
    return wide ? Launch(NormKernel<T, kWide>, shape, stream, params)
                : Launch(NormKernel<T, 1>, shape, stream, params);
  });
}

}  // namespace heddle::kernels::cuda
