#include "kernels/cpu/streams.h"

#include <algorithm>
#include <cmath>

namespace heddle::kernels::cpu {
namespace {

constexpr float kLeastMeanSquare = 1e-5f;
constexpr int64_t kLanes = 16;  // sums side by side, which compilers vectorise
constexpr int64_t kBlock = 64;  // columns whose streams are copied at a time

// The sum of term(i) over [0, n).
template <typename Term>
float SumOf(int64_t n, const Term& term) {
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
  }
  for (int64_t lane = 0; i < n; ++i, ++lane) lanes[lane] += term(i);
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

float MeanSquare(const float* row, int64_t cols) {
  return SumOf(cols, [row](int64_t i) { return row[i] * row[i]; }) / static_cast<float>(cols);
}

// The activation of a number above zero.
float ActivateOne(Activation activation, float x) {
  switch (activation) {
    case Activation::kSilu:
      return x / (1.0f + std::exp(-x));
    case Activation::kGelu:
      return 0.5f * x * std::erfc(-x * 0.70710678f);
    case Activation::kGeluTanh:  // 1 + tanh(u) = 2 sigmoid(2u); 2 sqrt(2 / pi) = 1.5957691
      return x / (1.0f + std::exp(-1.5957691f * x * (1.0f + 0.044715f * x * x)));
    case Activation::kRelu2:
      return x * x;
    case Activation::kNone:
    case Activation::kRelu:
    case Activation::kClampedSwiglu:  // never the activation of a sparse gate
      break;
  }
  return x;
}

}  // namespace

void PredictStreamsRow(const StreamsArgs& args, int64_t t) {
  const int64_t width = args.streams.cols / args.count;
  float* const row = args.streams.row<float>(t);
  const float* factors = args.factors.row<float>(t);
  float before[kMaxStreams][kBlock];
  for (int64_t begin = 0; begin < width; begin += kBlock) {
    const int64_t cols = std::min(kBlock, width - begin);
    for (int32_t q = 0; q < args.count; ++q) {
      std::copy_n(row + q * width + begin, cols, before[q]);
    }
    for (int32_t p = 0; p < args.count; ++p) {
      float* const out = row + p * width + begin;
      for (int32_t q = 0; q < args.count; ++q) {
        const float factor = factors[p * args.count + q];
        for (int64_t i = 0; i < cols; ++i) out[i] += factor * before[q][i];
      }
    }
  }
}

void CorrectStreamsRow(const StreamsArgs& args, int64_t t) {
  const int64_t width = args.streams.cols / args.count;
  float* const row = args.streams.row<float>(t);
  const float* factors = args.factors.row<float>(t);
  const float* computed = args.computed.row<float>(t);
  const float* active = row + args.active * width;
  float change[kBlock];
  for (int64_t begin = 0; begin < width; begin += kBlock) {
    const int64_t cols = std::min(kBlock, width - begin);
    for (int64_t i = 0; i < cols; ++i) change[i] = computed[begin + i] - active[begin + i];
    for (int32_t p = 0; p < args.count; ++p) {
      float* const out = row + p * width + begin;
      const float factor = 1.0f + factors[p];
      for (int64_t i = 0; i < cols; ++i) out[i] += factor * change[i];
    }
  }
}

void MatchMagnitudeRow(const float* like, float* x, int64_t cols) {
  const float own = std::max(MeanSquare(x, cols), kLeastMeanSquare);
  const float factor = std::sqrt(MeanSquare(like, cols)) / std::sqrt(own);
  for (int64_t i = 0; i < cols; ++i) x[i] *= factor;
}

void SparseGateRow(const SparseGateArgs& args, int64_t t) {
  const int64_t inter = args.gate_up.cols / 2;
  float* const gates = args.gate_up.row<float>(t);
  const float* ups = gates + inter;
  const auto count = static_cast<float>(inter);
  const float mean = SumOf(inter, [gates](int64_t i) { return gates[i]; }) / count;
  const auto square = [gates, mean](int64_t i) { return (gates[i] - mean) * (gates[i] - mean); };
  const float cut = mean + args.deviations * std::sqrt(SumOf(inter, square) / count);
  for (int64_t i = 0; i < inter; ++i) {
    const float gate = gates[i] - cut;
    gates[i] = gate > 0.0f ? ActivateOne(args.activation, gate) * ups[i] : 0.0f;
  }
}

}  // namespace heddle::kernels::cpu
