// RMSNorm and LayerNorm with an optional residual add in front. A block per row; the row stays in
// shared memory as F32 between the passes, so global memory sees each element once.
#include "kernels/cuda/group.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/weight_element.cuh"

namespace heddle::kernels::cuda {
namespace {

constexpr int kMaxWarps = 8;

// Loads x (plus residual, which is updated) into shared memory; returns this thread's sum.
template <typename T, int kWidth>
HEDDLE_DEVICE float LoadRow(const NormArgs& p, int64_t t, Shared<float> row) {
  using Wide = Group<T, kWidth>;
  const Wide* x = reinterpret_cast<const Wide*>(p.x.row<T>(t));
  Wide* residual = p.residual.data ? reinterpret_cast<Wide*>(p.residual.row<T>(t)) : nullptr;
  float sum = 0;
  for (int i = ThreadX(); i < p.x.cols / kWidth; i += ThreadCount()) {
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
      row.Set(i * kWidth + j, value);
      sum += value;
    }
  }
  return sum;
}

template <typename T, int kWidth>
HEDDLE_DEVICE void StoreRow(const NormArgs& p, int64_t t, Shared<float> row, float mean,
                            float scale) {
  using Wide = Group<T, kWidth>;
  Wide* out = reinterpret_cast<Wide*>(p.out.row<T>(t));
  for (int i = ThreadX(); i < p.x.cols / kWidth; i += ThreadCount()) {
    Wide values;
    HEDDLE_UNROLL
    for (int j = 0; j < kWidth; ++j) {
      int c = i * kWidth + j;
      float weight = p.weight ? p.weight[c] + p.weight_offset : 1.0f;
      float bias = p.bias ? p.bias[c] : 0.0f;
      values.item[j] = RoundTo((row.Get(c) - mean) * scale * weight + bias, T());
    }
    out[i] = values;
  }
}

// Every thread reads back what it wrote, so the row needs no barrier.
template <typename T, int kWidth>
HEDDLE_KERNEL NormKernel(HEDDLE_PARAMS(NormArgs, p)) {
  StartInTurn();
  SharedArena arena;
  Shared<float> scratch = arena.Take<float>(kMaxWarps);
  Shared<float> row = arena.Take<float>(static_cast<int>(p.x.cols));
  const int64_t t = BlockX();
  const float n = static_cast<float>(p.x.cols);
  float sum = LoadRow<T, kWidth>(p, t, row);
  float mean = p.kind == NormKind::kLayer ? BlockSum(sum, scratch) / n : 0.0f;
  float squares = 0;
  for (int i = ThreadX(); i < p.x.cols / kWidth; i += ThreadCount()) {
    HEDDLE_UNROLL
    for (int j = 0; j < kWidth; ++j) {
      float centred = row.Get(i * kWidth + j) - mean;
      squares += centred * centred;
    }
  }
  float scale = Rsqrt(BlockSum(squares, scratch) / n + p.eps);
  StoreRow<T, kWidth>(p, t, row, mean, scale);
}

template <typename T>
bool IsAligned(const Tensor& tensor, int width) {
  return tensor.data == nullptr ||
         (reinterpret_cast<uintptr_t>(tensor.data) % (width * sizeof(T)) == 0 &&
          tensor.stride % width == 0 && tensor.cols % width == 0);
}

}  // namespace

Error LaunchNorm(const NormArgs& args, DType act, Stream stream) {
  const int cols = static_cast<int>(args.x.cols);
  LaunchShape shape = {
      .grid_x = static_cast<int>(args.x.rows),
      .shared_bytes = SharedBytesFor<float>(kMaxWarps) + SharedBytesFor<float>(cols)};
  return ForActivation(act, [&]<typename T>(T) {
    constexpr int kWide = 16 / sizeof(T);
    bool wide = IsAligned<T>(args.x, kWide) && IsAligned<T>(args.residual, kWide) &&
                IsAligned<T>(args.out, kWide);
    int warps = CeilDiv(cols / (wide ? kWide : 1), 32);
    shape.threads = 32 * (warps < 1 ? 1 : warps > kMaxWarps ? kMaxWarps : warps);
    return wide ? Launch(NormKernel<T, kWide>, shape, stream, args)
                : Launch(NormKernel<T, 1>, shape, stream, args);
  });
}

}  // namespace heddle::kernels::cuda
