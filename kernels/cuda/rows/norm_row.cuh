// A row that a block norms: its values are in shared memory as F32, where a thread's neighbouring
// columns are apart, and those of neighbouring threads adjacent: 8 consecutive floats per thread
// would put 8 lanes on one bank. Column i * kWidth + j is at j * groups + i.
#pragma once

#include "kernels/cuda/norm_adapters.h"
#include "kernels/cuda/primitives/group.cuh"
#include "kernels/cuda/primitives/primitives.cuh"
#include "kernels/dtype.h"
#include "kernels/ops.h"

namespace heddle::kernels::cuda {

inline constexpr int kMaxNormWarps = 8;

struct NormParams {
  NormArgs args;
  NormAdapters adapters;
};

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

// Writes the norm of the row to args.out. `sum` is that of the thread's columns, which are those
// that it has set: the row needs no barrier. `scratch` [kMaxNormWarps].
template <typename T, int kWidth>
HEDDLE_DEVICE void NormRow(const NormParams& params, int64_t t, Shared<float> row, float sum,
                           Shared<float> scratch) {
  const NormArgs& p = params.args;
  const float n = static_cast<float>(p.x.cols);
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

// Threads of a block that norms rows of so many groups of columns.
inline int NormThreads(int64_t groups) {
  const auto warps = static_cast<int>((groups + 31) / 32);
  return 32 * (warps < 1 ? 1 : warps > kMaxNormWarps ? kMaxNormWarps : warps);
}

}  // namespace heddle::kernels::cuda
