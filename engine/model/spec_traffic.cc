#include "engine/model/spec_traffic.h"

#include <algorithm>

namespace heddle::engine {
namespace {

int64_t AttentionElements(const AttentionSpec& attention, int64_t hidden) {
  const int64_t heads = 2 * (int64_t{attention.n_heads} + attention.n_kv_heads);  // q, out, k, v
  const int64_t factors =                                                         // three, and out
      4 * int64_t{attention.conv.channels} + 2 * int64_t{attention.memory.channels};
  const int64_t gates = attention.product_dim() - attention.qkv_dim();
  const RecurrenceSpec& recurrence = attention.recurrence;
  const int64_t rows =
      recurrence.is_here() ? recurrence.shape.cols() + recurrence.shape.values() : 0;
  const int64_t selection =
      recurrence.is_here() && recurrence.shape.is_selective()
          ? recurrence.shape.values() * (recurrence.n_factors() + recurrence.step_rank)
          : 0;
  const WkvSpec& wkv = attention.wkv;
  const int64_t of_time =
      (4 * hidden + 2 * int64_t{wkv.decay_rank + wkv.rate_rank + wkv.value_rank + wkv.gate_rank}) *
      wkv.n_heads * wkv.head_dim;
  const IndexerSpec& indexer = attention.mla.indexer;
  const int64_t of_indexer = int64_t{attention.mla.q_rank} * indexer.n_heads * indexer.head_dim +
                             hidden * (indexer.is_here() ? indexer.n_heads + indexer.head_dim : 0);
  return hidden * (heads * attention.head_dim + factors + gates + rows) + selection + of_indexer +
         of_time;
}

// Elements of an MLP, including the router's.
int64_t MlpElements(const LayerSpec& layer, int64_t hidden) {
  const int64_t matrices = layer.mlp.gated ? 3 : 2;
  return hidden * (matrices * layer.mlp.inter + layer.moe.n_experts);
}

// Elements of what alternating updates and residuals beside attention read.
int64_t StreamElements(const ModelSpec& spec) {
  const int64_t count = spec.altup.count;
  int64_t elements = count > 1 ? 2 * (count - 1) * spec.hidden * spec.hidden : 0;
  for (const LayerSpec& layer : spec.layers) {
    elements += count * (spec.hidden + (count + 1) * count);
    elements += 2 * int64_t{layer.laurel_rank} * spec.hidden;
  }
  return elements;
}

int64_t ExpertElements(const MoeSpec& moe, int64_t hidden) { return 3 * hidden * moe.inter; }

}  // namespace

int32_t NarrowingLayer(const ModelSpec& spec) {
  const int32_t none = spec.n_layers();
  const int32_t first = spec.first_reader();
  if (first == none || spec.is_part() || spec.n_stages > 1 || spec.altup.count > 0) return none;
  const LayerSpec& begins = spec.layers[static_cast<size_t>(first)];
  if (begins.attention_input != AttentionInput::kStream) return none;
  // The block before the first one would add its output to rows that are left.
  for (int32_t layer = std::max(first - 1, 0); layer < none; ++layer) {
    if (spec.layers[static_cast<size_t>(layer)].wiring == Wiring::kLadder) return none;
  }
  return first;
}

SpecTraffic TrafficOf(const ModelSpec& spec, int64_t weight_bytes) {
  SpecTraffic traffic;
  int64_t dense = 0, experts = 0;
  const int32_t narrowing = NarrowingLayer(spec);
  for (int32_t i = 0; i < spec.n_layers(); ++i) {
    const LayerSpec& layer = spec.layers[static_cast<size_t>(i)];
    const int64_t every_row =
        AttentionElements(layer.attention, spec.hidden) + MlpElements(layer, spec.hidden);
    dense += every_row;
    int64_t& macs = i < narrowing ? traffic.macs_per_token : traffic.macs_per_logit_row;
    macs += every_row;
    if (layer.moe.n_experts == 0) continue;
    const int64_t expert = ExpertElements(layer.moe, spec.hidden);
    experts += layer.moe.n_here() * expert;
    // Those that other ranks have are chosen as often.
    macs += layer.moe.rule.top_k * expert * layer.moe.n_here() / layer.moe.n_experts;
    traffic.n_experts = layer.moe.n_experts;
    traffic.top_k = layer.moe.rule.top_k;
  }
  // The product that makes the layers' inputs, and the two in each layer that reads its own.
  const int64_t inputs = 3 * spec.layer_inputs() * spec.hidden;
  dense += inputs;
  const int64_t narrowed = spec.n_layers() - narrowing;
  const int64_t of_narrowed =
      narrowed == 0 ? 0 : 2 * int64_t{spec.layer_input_dim} * narrowed * spec.hidden;
  traffic.macs_per_token += inputs - of_narrowed;
  traffic.macs_per_logit_row += of_narrowed;
  const int64_t streams = StreamElements(spec);
  dense += streams;
  traffic.macs_per_token += streams;
  const int64_t head = int64_t{spec.own_vocab()} * spec.hidden;
  traffic.macs_per_logit_row += head;
  dense += head;
  // Rows of these tables are looked up: no step reads them whole.
  int64_t looked_up = spec.tied_embeddings ? 0 : head;
  if (spec.learned_positions) looked_up += int64_t{spec.max_context} * spec.hidden;
  looked_up += spec.layer_inputs() * spec.layer_input_vocab;
  const int64_t all = dense + experts + looked_up;
  if (all == 0) return traffic;  // a rank without a share
  const double bytes_per_element = static_cast<double>(weight_bytes) / static_cast<double>(all);
  traffic.bytes = static_cast<int64_t>(static_cast<double>(dense) * bytes_per_element);
  traffic.expert_bytes = static_cast<int64_t>(static_cast<double>(experts) * bytes_per_element);
  return traffic;
}

}  // namespace heddle::engine
