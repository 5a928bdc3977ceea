#include <cmath>

#include "kernels/reference/reference.h"

namespace heddle::kernels::reference {
namespace {

struct Moments {
  double mean;
  double scale;  // 1 / sqrt(... + eps)
};

Moments MomentsOf(NormKind kind, const float* x, int64_t n, float eps) {
  double mean = 0;
  if (kind == NormKind::kLayer) {
    for (int64_t i = 0; i < n; ++i) mean += x[i];
    mean /= static_cast<double>(n);
  }
  double squares = 0;
  for (int64_t i = 0; i < n; ++i) squares += (x[i] - mean) * (x[i] - mean);
  return {mean, 1.0 / std::sqrt(squares / static_cast<double>(n) + eps)};
}

}  // namespace

void Norm(const HostBatch& batch, const NormArgs& args) {
  for (int64_t t = 0; t < args.x.rows; ++t) {
    const float* x = args.x.row<float>(t);
    if (args.residual.data != nullptr) {
      float* residual = args.residual.row<float>(t);
      for (int64_t i = 0; i < args.x.cols; ++i) residual[i] += x[i];
      x = residual;
    }
    Moments moments = MomentsOf(args.kind, x, args.x.cols, args.eps);
    float* out = args.out.row<float>(t);
    const int32_t slot = args.adapters == nullptr ? -1 : SlotOf(batch, args.adapter_rows, t);
    AdapterFactors added;
    if (slot >= 0) added = args.adapters->factors[int64_t{slot} * args.adapters->slot_stride];
    for (int64_t i = 0; i < args.x.cols; ++i) {
      double weight = args.weight ? static_cast<double>(args.weight[i]) + args.weight_offset : 1.0;
      double bias = args.bias ? args.bias[i] : 0.0;
      if (added.gain != nullptr) weight += double{added.vector_scale} * added.gain[i];
      if (added.bias != nullptr) bias += double{added.vector_scale} * added.bias[i];
      out[i] = static_cast<float>((x[i] - moments.mean) * moments.scale * weight + bias);
    }
  }
}

}  // namespace heddle::kernels::reference
