// RMSNorm and LayerNorm with an optional residual add in front. One block per row; the row stays in
// shared memory as F32 between the passes, so global memory sees each element once. In shared
// memory a thread's neighbouring columns are apart, and those of neighbouring threads adjacent: 8
// consecutive floats per thread would put 8 lanes on one bank.
#include "kernels/cuda/primitives/group.cuh"
#include "kernels/cuda/primitives/launch.cuh"
#include "kernels/cuda/rows/row_params.h"

namespace heddle::kernels::cuda {
namespace {

constexpr int kMaxWarps = 8;

struct NormParams {
  NormArgs args;
  NormAdapters adapters;
};

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

// Columns [c, c + kWidth) of a vector, or of a constant one.
template <int kWidth>
HEDDLE_DEVICE Group<float, kWidth> LoadOr(const float* from, int c, float otherwise) {
  if (from != nullptr) return LoadGroup<kWidth>(from + c);
  Group<float, kWidth> same;
  HEDDLE_UNROLL
  for (int j = 0; j < kWidth; ++j) same.item[j] = otherwise;
  return same;
}

// Additions of the row's adapter to weights and biases; zeros without one.
template <int kWidth>
HEDDLE_DEVICE void AddAdapter(const NormAdapters& adapters, int64_t t, int c,
                              Group<float, kWidth>& weights, Group<float, kWidth>& biases) {
  const int32_t slot = adapters.slots[t];
  if (slot < 0) return;
  const AdapterFactors& factors = adapters.factors[int64_t{slot} * adapters.slot_stride];
  HEDDLE_UNROLL
  for (int j = 0; j < kWidth; ++j) {
    if (factors.gain != nullptr) weights.item[j] += factors.vector_scale * factors.gain[c + j];
    if (factors.bias != nullptr) biases.item[j] += factors.vector_scale * factors.bias[c + j];
  }
}

template <typename T, int kWidth>
HEDDLE_DEVICE void StoreRow(const NormParams& params, int64_t t, Shared<float> row, float mean,
                            float scale) {
  const NormArgs& p = params.args;
  using Wide = Group<T, kWidth>;
  Wide* out = reinterpret_cast<Wide*>(p.out.row<T>(t));
  const int groups = static_cast<int>(p.x.cols) / kWidth;
  for (int i = ThreadX(); i < groups; i += ThreadCount()) {
    Wide values;
    auto weights = LoadOr<kWidth>(p.weight, i * kWidth, 1.0f);
    auto biases = LoadOr<kWidth>(p.bias, i * kWidth, 0.0f);
    const float offset = p.weight != nullptr ? p.weight_offset : 0.0f;
    if (params.adapters.factors != nullptr) {
      AddAdapter<kWidth>(params.adapters, t, i * kWidth, weights, biases);
    }
    HEDDLE_UNROLL
    for (int j = 0; j < kWidth; ++j) {
      const float centred = row.Get(j * groups + i) - mean;
      values.item[j] = RoundTo(centred * scale * (weights.item[j] + offset) + biases.item[j], T());
    }
    out[i] = values;
  }
}

// Every thread reads back what it wrote, so the row needs no barrier.
template <typename T, int kWidth>
HEDDLE_KERNEL NormKernel(HEDDLE_PARAMS(NormParams, params)) {
  StartInTurn();
  const NormArgs& p = params.args;
  SharedArena arena;
  Shared<float> scratch = arena.Take<float>(kMaxWarps);
  Shared<float> row = arena.Take<float>(static_cast<int>(p.x.cols));
  const int64_t t = BlockX();
  const float n = static_cast<float>(p.x.cols);
  float sum = LoadRow<T, kWidth>(p, t, row);
  float mean = p.kind == NormKind::kLayer ? BlockSum(sum, scratch) / n : 0.0f;
  float squares = 0;
  const int groups = static_cast<int>(p.x.cols) / kWidth;
  for (int i = ThreadX(); i < groups; i += ThreadCount()) {
    HEDDLE_UNROLL
    for (int j = 0; j < kWidth; ++j) {
      float centred = row.Get(j * groups + i) - mean;
      squares += centred * centred;
    }
  }
  float scale = Rsqrt(BlockSum(squares, scratch) / n + p.eps);
  StoreRow<T, kWidth>(params, t, row, mean, scale);
}

template <typename T>
bool IsAligned(const Tensor& tensor, int width) {
  return tensor.data == nullptr ||
         (reinterpret_cast<uintptr_t>(tensor.data) % (width * sizeof(T)) == 0 &&
          tensor.stride % width == 0 && tensor.cols % width == 0);
}

}  // namespace

Error LaunchNorm(const NormArgs& args, const NormAdapters& adapters, DType act, Stream stream) {
  NormParams params = {args, adapters};
  params.args.adapters = nullptr;  // the host's
  const int cols = static_cast<int>(args.x.cols);
  LaunchShape shape = {
      .grid_x = static_cast<int>(args.x.rows),
      .shared_bytes = SharedBytesFor<float>(kMaxWarps) + SharedBytesFor<float>(cols)};
  return ForActivation(act, [&]<typename T>(T) {
    constexpr int kWide = 16 / sizeof(T);
    bool wide = IsAligned<T>(args.x, kWide) && IsAligned<T>(args.residual, kWide) &&
                IsAligned<T>(args.out, kWide) &&
                reinterpret_cast<uintptr_t>(args.weight) % 16 == 0 &&
                reinterpret_cast<uintptr_t>(args.bias) % 16 == 0;
    int warps = CeilDiv(cols / (wide ? kWide : 1), 32);
    shape.threads = 32 * (warps < 1 ? 1 : warps > kMaxWarps ? kMaxWarps : warps);
    return wide ? Launch(NormKernel<T, kWide>, shape, stream, params)
                : Launch(NormKernel<T, 1>, shape, stream, params);
  });
}

}  // namespace heddle::kernels::cuda
