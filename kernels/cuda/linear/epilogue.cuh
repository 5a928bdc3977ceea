// The epilogue of a finished output of a matrix product, the same for every matrix kernel.
#pragma once

#include "kernels/cuda/linear/linear_params.h"
#include "kernels/cuda/primitives/group.cuh"
#include "kernels/cuda/primitives/primitives.cuh"

namespace heddle::kernels::cuda {

template <Activation kActivation>
HEDDLE_DEVICE float Activate(float x) {
  if constexpr (kActivation == Activation::kSilu) {
    return DivideFast(x, 1.0f + Exp(-x));
  } else if constexpr (kActivation == Activation::kGelu) {
    return 0.5f * x * Erfc(-x * 0.70710678f);
  } else if constexpr (kActivation == Activation::kGeluTanh) {
    // 1 + tanh(u) = 2 / (1 + exp(-2u)), u = sqrt(2 / pi) (x + 0.044715 x^3)
    return DivideFast(x, 1.0f + Exp(-1.5957691f * (x + 0.044715f * x * x * x)));
  } else if constexpr (kActivation == Activation::kRelu) {
    return Max(x, 0.0f);
  } else if constexpr (kActivation == Activation::kRelu2) {
    return Max(x, 0.0f) * Max(x, 0.0f);
  } else {
    return x;
  }
}

template <Activation kActivation>
HEDDLE_DEVICE float Gate(float gate, float up) {
  if constexpr (kActivation == Activation::kClampedSwiglu) {
    const float g = -Max(-gate, -7.0f);
    const float u = Max(-7.0f, -Max(-up, -7.0f));
    return DivideFast(g, 1.0f + Exp(-1.702f * g)) * (u + 1.0f);
  } else {
    return Activate<kActivation>(gate) * up;
  }
}

// Calls fn.template operator()<kActivation>() for the given activation.
template <typename Fn>
HEDDLE_DEVICE void ForFunction(Activation activation, Fn fn) {
  switch (activation) {
    case Activation::kSilu:
      return fn.template operator()<Activation::kSilu>();
    case Activation::kGelu:
      return fn.template operator()<Activation::kGelu>();
    case Activation::kGeluTanh:
      return fn.template operator()<Activation::kGeluTanh>();
    case Activation::kRelu:
      return fn.template operator()<Activation::kRelu>();
    case Activation::kRelu2:
      return fn.template operator()<Activation::kRelu2>();
    case Activation::kClampedSwiglu:
      return fn.template operator()<Activation::kClampedSwiglu>();
    default:
      return fn.template operator()<Activation::kNone>();
  }
}

// Columns of the output, and the weight rows that make output column r.
HEDDLE_HOST_DEVICE int64_t OutputCols(const LinearParams& p) {
  return p.epilogue == Epilogue::kGated ? p.half : p.weight.rows;
}

// Computes what is stored at out[t][r + e], or with kAdd added to it, from the sums y of weight row
// r + e and, for kGated, up of row r + half + e; y is replaced. Common conditions are tested once.
template <int kWidth>
HEDDLE_DEVICE void FinishOutputs(const LinearParams& p, int64_t t, int64_t r,
                                 Group<float, kWidth>& y, Group<float, kWidth> up) {
  const bool gated = p.epilogue == Epilogue::kGated;
  const auto add = [r](Group<float, kWidth>& to, const float* row) {
    const auto terms = LoadAnywhere<kWidth>(row + r);
    HEDDLE_UNROLL
    for (int e = 0; e < kWidth; ++e) to.item[e] += terms.item[e];
  };
  const auto multiply = [r](Group<float, kWidth>& to, const float* row) {
    const auto factors = LoadAnywhere<kWidth>(row + r);
    HEDDLE_UNROLL
    for (int e = 0; e < kWidth; ++e) to.item[e] *= factors.item[e];
  };
  if (p.delta != nullptr && p.delta_slots[t / p.outputs_per_slot] >= 0) {
    if (p.gains != nullptr) {
      multiply(y, p.gains + t * p.delta_stride);
      if (gated) multiply(up, p.gains_up + t * p.delta_stride);
    }
    add(y, p.delta + t * p.delta_stride);
    if (gated) add(up, p.delta_up + t * p.delta_stride);
  }
  if (p.bias != nullptr) add(y, p.bias);
  if (gated && p.bias_up != nullptr) add(up, p.bias_up);
  if (p.epilogue == Epilogue::kAdd) return;
  ForFunction(p.activation, [&]<Activation kActivation>() {
    HEDDLE_UNROLL
    for (int e = 0; e < kWidth; ++e) {
      y.item[e] =
          gated ? Gate<kActivation>(y.item[e], up.item[e]) : Activate<kActivation>(y.item[e]);
    }
  });
}

// The same for a single output.
HEDDLE_DEVICE float OutputOf(const LinearParams& p, int64_t t, int64_t r, float y, float y_up) {
  Group<float, 1> out = {{y}};
  FinishOutputs<1>(p, t, r, out, {{y_up}});
  return out.item[0];
}

// Stores out[t][r] from these sums.
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
