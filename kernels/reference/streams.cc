// Alternating updates, and gates of which few stay.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/reference/reference.h"

namespace heddle::kernels::reference {
namespace {

constexpr double kLeastMeanSquare = 1e-5;

double MeanSquare(const float* row, int64_t cols) {
  double sum = 0;
  for (int64_t i = 0; i < cols; ++i) sum += double{row[i]} * row[i];
  return sum / static_cast<double>(cols);
}

}  // namespace

void PredictStreams(const StreamsArgs& args) {
  const int64_t width = args.streams.cols / args.count;
  for (int64_t t = 0; t < args.streams.rows; ++t) {
    float* row = args.streams.row<float>(t);
    const float* factors = args.factors.row<float>(t);
    const std::vector<float> before(row, row + args.streams.cols);
    for (int64_t i = 0; i < args.streams.cols; ++i) {
      const int64_t p = i / width;
      double sum = row[i];
      for (int64_t q = 0; q < args.count; ++q) {
        sum += double{factors[p * args.count + q]} *
               before[static_cast<size_t>(q * width + i % width)];
      }
      row[i] = static_cast<float>(sum);
    }
  }
}

void CorrectStreams(const StreamsArgs& args) {
  const int64_t width = args.streams.cols / args.count;
  for (int64_t t = 0; t < args.streams.rows; ++t) {
    float* row = args.streams.row<float>(t);
    const float* active = row + args.active * width;
    const std::vector<float> before(active, active + width);
    for (int64_t i = 0; i < args.streams.cols; ++i) {
      const int64_t c = i % width;
      const double change = double{args.computed.row<float>(t)[c]} - before[static_cast<size_t>(c)];
      row[i] = static_cast<float>(row[i] + (1.0 + args.factors.row<float>(t)[i / width]) * change);
    }
  }
}

void MatchMagnitude(Tensor like, Tensor x) {
  for (int64_t t = 0; t < x.rows; ++t) {
    float* row = x.row<float>(t);
    const double own = std::max(MeanSquare(row, x.cols), kLeastMeanSquare);
    const double factor = std::sqrt(MeanSquare(like.row<float>(t), like.cols) / own);
    for (int64_t i = 0; i < x.cols; ++i) row[i] = static_cast<float>(row[i] * factor);
  }
}

void SparseGate(const SparseGateArgs& args) {
  const int64_t inter = args.gate_up.cols / 2;
  for (int64_t t = 0; t < args.gate_up.rows; ++t) {
    float* gates = args.gate_up.row<float>(t);
    double mean = 0;
    double square = 0;
    for (int64_t i = 0; i < inter; ++i) mean += gates[i] / static_cast<double>(inter);
    for (int64_t i = 0; i < inter; ++i) square += (gates[i] - mean) * (gates[i] - mean);
    const double cut = mean + args.deviations * std::sqrt(square / static_cast<double>(inter));
    for (int64_t i = 0; i < inter; ++i) {
      gates[i] = static_cast<float>(
          Gate(args.activation, std::max(0.0, gates[i] - cut), gates[inter + i]));
    }
  }
}

}  // namespace heddle::kernels::reference
