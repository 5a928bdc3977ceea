// What happens to a finished output of a matrix product, the same for every matrix kernel.
#pragma once

#include "kernels/cuda/params.h"
#include "kernels/cuda/primitives.cuh"

namespace heddle::kernels::cuda {

HEDDLE_DEVICE float Activate(Activation activation, float x) {
  switch (activation) {
    case Activation::kSilu:
      return x / (1.0f + Exp(-x));
    case Activation::kGelu:
      return 0.5f * x * Erfc(-x * 0.70710678f);
    case Activation::kGeluTanh:
      // 1 + tanh(u) = 2 / (1 + exp(-2u)), u = sqrt(2 / pi) (x + 0.044715 x^3)
      return x / (1.0f + Exp(-1.5957691f * (x + 0.044715f * x * x * x)));
    case Activation::kRelu:
      return Max(x, 0.0f);
    case Activation::kRelu2:
      return Max(x, 0.0f) * Max(x, 0.0f);
    default:
      return x;
  }
}

HEDDLE_DEVICE float Gate(Activation activation, float gate, float up) {
  if (activation != Activation::kClampedSwiglu) return Activate(activation, gate) * up;
  const float g = -Max(-gate, -7.0f);
  const float u = Max(-7.0f, -Max(-up, -7.0f));
  return g / (1.0f + Exp(-1.702f * g)) * (u + 1.0f);
}

// Columns of the output, and for output column r the weight rows that make it.
HEDDLE_HOST_DEVICE int64_t OutputCols(const LinearParams& p) {
  return p.epilogue == Epilogue::kGated ? p.half : p.weight.rows;
}

// What is stored at out[t][r], or with kAdd added to it, from the sums y of weight row r and, for
// kGated, y_up of row r + half.
HEDDLE_DEVICE float OutputOf(const LinearParams& p, int64_t t, int64_t r, float y, float y_up) {
  const bool adapted = p.delta != nullptr && p.delta_slots[t] >= 0;
  if (adapted) y += p.delta[t * p.delta_stride + r];
  if (p.bias != nullptr) y += p.bias[r];
  if (p.epilogue == Epilogue::kGated) {
    if (adapted) y_up += p.delta_up[t * p.delta_stride + r];
    if (p.bias_up != nullptr) y_up += p.bias_up[r];
    return Gate(p.activation, y, y_up);
  }
  return p.epilogue == Epilogue::kNone ? Activate(p.activation, y) : y;
}

// Stores out[t][r] from such sums.
template <typename T>
HEDDLE_DEVICE void StoreOutput(const LinearParams& p, int64_t t, int64_t r, float y, float y_up) {
  y = OutputOf(p, t, r, y, y_up);
  if (p.out_f32) {
    float& out = p.out.row<float>(t)[r];
    out = p.epilogue == Epilogue::kAdd ? out + y : y;
  } else {
    T& out = p.out.row<T>(t)[r];
    out = RoundTo(p.epilogue == Epilogue::kAdd ? ToFloat(out) + y : y, T());
  }
}

}  // namespace heddle::kernels::cuda
