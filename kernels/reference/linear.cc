#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"
#include "kernels/reference/reference.h"

namespace heddle::kernels::reference {
namespace {

double Dot(const float* x, const float* w, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * w[i];
  return sum;
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
      break;  // see Gate
  }
  return x;
}

double Gate(Activation activation, double gate, double up) {
  if (activation != Activation::kClampedSwiglu) return Activate(activation, gate) * up;
  const double g = std::min(gate, 7.0);
  return g / (1.0 + std::exp(-1.702 * g)) * (std::clamp(up, -7.0, 7.0) + 1.0);
}

void Linear(const LinearArgs& args) {
  const auto& w = static_cast<const Weight&>(*args.weight);
  HEDDLE_CHECK(args.x.cols == w.cols, "linear: x and W differ in cols");
  auto y = [&](int64_t t, int64_t r) {
    return Dot(args.x.row<float>(t), w.row(r), w.cols) + (args.bias ? args.bias[r] : 0.0f);
  };
  int64_t half = w.rows / 2;
  for (int64_t t = 0; t < args.x.rows; ++t) {
    float* out = args.out.row<float>(t);
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
