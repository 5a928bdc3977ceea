#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "base/check.h"
#include "kernels/kv_element.h"
#include "kernels/reference/reference.h"

namespace heddle::kernels::reference {
namespace {

double Dot(const float* x, const float* w, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * w[i];
  return sum;
}

// The contribution of a row's adapter to its products, [rows of the weight].
std::vector<double> AdapterDelta(const AdapterMatrix& adapters, int32_t slot, const float* x,
                                 const Weight& w) {
  std::vector<double> delta(static_cast<size_t>(w.rows), 0.0);
  for (size_t i = 0; i < adapters.parts.size(); ++i) {
    const AdapterPart& part = adapters.parts[i];
    const AdapterFactors& factors =
        adapters.factors[int64_t{slot} * adapters.slot_stride + static_cast<int64_t>(i)];
    for (int32_t j = 0; j < factors.rank; ++j) {
      const void* a = factors.a[j / factors.block_rows];
      const void* b = factors.b[j / factors.block_rows];
      const int64_t row = j % factors.block_rows;
      double shrunk = 0;
      for (int64_t k = 0; k < w.cols; ++k) {
        shrunk += static_cast<double>(x[k]) * LoadElement(adapters.dtype, a, row * w.cols + k);
      }
      for (int64_t r = 0; r < part.rows; ++r) {
        delta[static_cast<size_t>(part.first_row + r)] +=
            factors.scale * shrunk * LoadElement(adapters.dtype, b, row * part.rows + r);
      }
    }
  }
  return delta;
}

}  // namespace

double Activate(Activation activation, double x) {
  switch (activation) {
    case Activation::kNone:
      return x;
    case Activation::kSilu:
      return x / (1.0 + std::exp(-x));
    case Activation::kGelu:
      return 0.5 * x * std::erfc(-x / std::numbers::sqrt2);
    case Activation::kGeluTanh: {
      double inner = std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x);
      return x / (1.0 + std::exp(-2.0 * inner));  // 1 + tanh(u) = 2 / (1 + exp(-2u))
    }
    case Activation::kRelu:
      return x > 0 ? x : 0;
    case Activation::kRelu2:
      return x > 0 ? x * x : 0;
    case Activation::kClampedSwiglu:
      break;  // Gate handles it
  }
  return x;
}

double Gate(Activation activation, double gate, double up) {
  if (activation != Activation::kClampedSwiglu) return Activate(activation, gate) * up;
  const double g = std::min(gate, 7.0);
  return g / (1.0 + std::exp(-1.702 * g)) * (std::clamp(up, -7.0, 7.0) + 1.0);
}

void Linear(const HostBatch& batch, const LinearArgs& args) {
  const auto& w = static_cast<const Weight&>(*args.weight);
  HEDDLE_CHECK(args.x.cols == w.cols, "linear: x and W differ in cols");
  const bool adapted = args.adapters != nullptr && !batch.adapter_slot.empty();
  std::vector<double> delta;  // of row t
  auto y = [&](int64_t t, int64_t r) {
    const double product = Dot(args.x.row<float>(t), w.row(r), w.cols);
    const double added = delta.empty() ? 0.0 : delta[static_cast<size_t>(r)];
    return product + added + (args.bias ? args.bias[r] : 0.0f);
  };
  int64_t half = w.rows / 2;
  for (int64_t t = 0; t < args.x.rows; ++t) {
    float* out = args.out.row<float>(t);
    const int32_t slot = adapted ? batch.adapter_slot[static_cast<size_t>(t)] : -1;
    delta.clear();
    if (slot >= 0) delta = AdapterDelta(*args.adapters, slot, args.x.row<float>(t), w);
    for (int64_t r = 0; r < args.out.cols; ++r) {
      switch (args.epilogue) {
        case Epilogue::kNone:
          out[r] = static_cast<float>(Activate(args.activation, y(t, r)));
          break;
        case Epilogue::kAdd:
          out[r] = static_cast<float>(out[r] + y(t, r));
          break;
        case Epilogue::kGated:
          out[r] = static_cast<float>(Gate(args.activation, y(t, r), y(t, r + half)));
          break;
      }
    }
  }
}

}  // namespace heddle::kernels::reference
