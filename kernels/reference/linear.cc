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

// scale * B A x for one part.
void AddProduct(const AdapterMatrix& adapters, const AdapterFactors& factors, const float* x,
                int64_t cols, int64_t rows, double* y) {
  for (int32_t j = 0; j < factors.rank; ++j) {
    double shrunk = factors.a == nullptr ? double{x[j]} : 0.0;
    const int64_t row = j % factors.block_rows;
    for (int64_t k = 0; factors.a != nullptr && k < cols; ++k) {
      shrunk += static_cast<double>(x[k]) *
                LoadElement(adapters.dtype, factors.a[j / factors.block_rows], row * cols + k);
    }
    for (int64_t r = 0; r < rows; ++r) {
      y[r] += factors.scale * shrunk *
              LoadElement(adapters.dtype, factors.b[j / factors.block_rows], row * rows + r);
    }
  }
}

}  // namespace

int32_t SlotOf(const HostBatch& batch, const AdapterRows& rows, int64_t t) {
  if (batch.adapter_slot.empty()) return -1;
  const int64_t row = rows.first + t;
  const int64_t of_batch = rows.of_logits ? batch.logit_rows[static_cast<size_t>(row)] : row;
  return batch.adapter_slot[static_cast<size_t>(of_batch)];
}

void AddAdapter(const AdapterMatrix& adapters, int32_t slot, int32_t member, const float* x,
                int64_t cols, std::span<double> y) {
  const size_t n_parts = adapters.parts.size();
  for (size_t i = 0; i < n_parts; ++i) {
    const AdapterPart& part = adapters.parts[i];
    const AdapterFactors& factors = adapters.factors[int64_t{slot} * adapters.slot_stride +
                                                     static_cast<int64_t>(member * n_parts + i)];
    double* own = y.data() + part.first_row;
    for (int64_t r = 0; r < part.rows; ++r) {
      if (factors.gain != nullptr)
        own[r] += double{factors.vector_scale} * factors.gain[r] * own[r];
      if (factors.bias != nullptr) own[r] += double{factors.vector_scale} * factors.bias[r];
    }
    AddProduct(adapters, factors, x, cols, part.rows, own);
  }
}

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
  std::vector<double> y(static_cast<size_t>(w.rows));  // of row t
  const int64_t half = w.rows / 2;
  for (int64_t t = 0; t < args.x.rows; ++t) {
    float* out = args.out.row<float>(t);
    const int32_t slot = args.adapters == nullptr ? -1 : SlotOf(batch, args.adapter_rows, t);
    for (int64_t r = 0; r < w.rows; ++r) {
      y[static_cast<size_t>(r)] = Dot(args.x.row<float>(t), w.row(r), w.cols);
    }
    if (slot >= 0) AddAdapter(*args.adapters, slot, 0, args.x.row<float>(t), w.cols, y);
    for (int64_t r = 0; args.bias != nullptr && r < w.rows; ++r) {
      y[static_cast<size_t>(r)] += args.bias[r];
    }
    for (int64_t r = 0; r < args.out.cols; ++r) {
      const double own = y[static_cast<size_t>(r)];
      switch (args.epilogue) {
        case Epilogue::kNone:
          out[r] = static_cast<float>(Activate(args.activation, own));
          break;
        case Epilogue::kAdd:
          out[r] = static_cast<float>(out[r] + own);
          break;
        case Epilogue::kGated:
          out[r] = static_cast<float>(Gate(args.activation, own, y[static_cast<size_t>(r + half)]));
          break;
      }
    }
  }
}

}  // namespace heddle::kernels::reference
