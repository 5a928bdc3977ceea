#include <cmath>

#include "engine/model/spec_traffic.h"
#include "engine/model/weights.h"

namespace heddle::engine {

double WeightTraffic::StepBytes(double rows) const {
  auto total = static_cast<double>(bytes);
  for (const Experts& layer : experts) {
    const double passed_over = 1.0 - static_cast<double>(layer.top_k) / layer.count;
    total += static_cast<double>(layer.bytes) * (1.0 - std::pow(passed_over, rows));
  }
  return total;
}

WeightTraffic TrafficOf(const ModelSpec& spec, const ModelWeights& weights) {
  WeightTraffic traffic;
  int64_t* macs = &traffic.macs_per_token;
  auto add = [&](const LinearWeights& linear) {
    if (linear.matrix == nullptr) return;
    traffic.bytes += linear.matrix->bytes;
    *macs += linear.matrix->rows * linear.matrix->cols;
  };
  auto add_heads = [&](const kernels::PackedStack* heads) {
    if (heads == nullptr) return;
    traffic.bytes += heads->bytes;
    *macs += heads->count * heads->rows * heads->cols;
  };
  const auto narrowing = static_cast<size_t>(NarrowingLayer(spec));
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    if (i == narrowing) macs = &traffic.macs_per_logit_row;
    const LayerWeights& layer = weights.layers[i];
    for (const LinearWeights* linear :
         {&layer.qkv, &layer.out, &layer.up, &layer.down, &layer.row_gate, &layer.moe.router,
          &layer.mla.q_a, &layer.mla.q, &layer.mla.kv_a, &layer.input_gate, &layer.input_out,
          &layer.altup.router, &layer.altup.predict, &layer.altup.correct, &layer.laurel_in,
          &layer.laurel_out}) {
      add(*linear);
    }
    add_heads(layer.mla.k_up.get());
    add_heads(layer.mla.v_up.get());
    const MoeWeights& moe = layer.moe;
    if (moe.up == nullptr) continue;
    const int32_t top_k = spec.layers[i].moe.rule.top_k;
    *macs += top_k * (moe.up->rows * moe.up->cols + moe.down->rows * moe.down->cols);
    traffic.experts.push_back({moe.up->bytes + moe.down->bytes, moe.up->count, top_k});
  }
  const auto add_matrix = [&](const kernels::PackedWeight* matrix) {
    if (matrix == nullptr) return;
    traffic.bytes += matrix->bytes;
    traffic.macs_per_token += matrix->rows * matrix->cols;
  };
  add_matrix(weights.layer_inputs_in.get());
  add_matrix(weights.altup_in.get());
  for (const auto& matrix : weights.altup_out) add_matrix(matrix.get());
  if (weights.head() != nullptr) {
    traffic.bytes += weights.head()->bytes;
    traffic.macs_per_logit_row += weights.head()->rows * weights.head()->cols;
  }
  return traffic;
}

}  // namespace heddle::engine
