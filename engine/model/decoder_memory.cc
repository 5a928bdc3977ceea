// The decoder's buffers, and how large they are.
#include <algorithm>

#include "base/status.h"
#include "engine/model/decoder.h"

namespace heddle::engine {
namespace {

// Elements per token of the widest layer.
struct Widths {
  int64_t qkv = 0;
  int64_t attended = 0;
  int64_t inner = 0;
  // Columns of queries, keys and values, of results and of heads, in layers that attend.
  int64_t attention_qkv = 0, attention_out = 0, attention_heads = 0;
  int64_t parallel_inner = 0;  // `inner` of layers with Wiring::kParallel
  int64_t q_latent = 0;
  int64_t heads = 0;
  int64_t experts = 0;
  int64_t choices = 0;
  int64_t expert_inner = 0;
  int64_t expert_rows = 0;
  int64_t row_gates = 0;
  int64_t layer_inputs = 0;
  int64_t streams = 0;
  int64_t stream_factors = 0;
  int64_t aside = 0;
  int64_t parts = 0;
  int64_t n_parts = 0;  // of that width
  int64_t n_late = 0;
  int64_t n_posted = 0;  // of rows of the stream
  int64_t all_heads = 0;
  int64_t shifted = 0;
  int64_t time_mix = 0;
  int64_t waist = 0;
  int64_t first_value = 0;
  int64_t memory = 0;
  int64_t index_keys = 0;
  int64_t index_weights = 0;
  int64_t index_places = 0;

  // Elements of activations per token; those of 4-byte values are counted apart.
  int64_t activations(int64_t hidden) const {
    return 2 * hidden + qkv + attended + q_latent + heads + inner + expert_inner + expert_rows +
           n_parts * parts + (n_late + n_posted) * hidden + all_heads + layer_inputs + streams +
           aside + index_keys + shifted + time_mix + waist + first_value + memory;
  }
  int64_t words() const {
    return experts + 2 * choices + row_gates + index_weights + index_places + stream_factors;
  }
};

// Queries and values of heads over latents, and what indexers make of the rows.
void WidenForLatents(const AttentionSpec& attention, Widths* widths) {
  const MlaSpec& mla = attention.mla;
  int64_t heads = int64_t{attention.n_heads} * std::max(mla.q_dim(), mla.v_dim);
  if (const IndexerSpec& indexer = mla.indexer; indexer.is_here()) {
    heads = std::max(heads, int64_t{indexer.n_heads} * indexer.head_dim);
    widths->index_keys = std::max<int64_t>(widths->index_keys, indexer.head_dim);
    widths->index_weights = std::max<int64_t>(widths->index_weights, indexer.n_heads);
    widths->index_places = std::max<int64_t>(widths->index_places, 1 + int64_t{indexer.top_k});
  }
  widths->heads = std::max(widths->heads, heads);
  widths->attention_heads = std::max(widths->attention_heads, heads);
}

Widths WidestLayer(const ModelSpec& spec) {
  Widths widths;
  const bool has_late =
      std::any_of(spec.layers.begin(), spec.layers.end(),
                  [](const LayerSpec& layer) { return layer.wiring == Wiring::kLadder; });
  widths.parts = spec.is_part() ? spec.hidden : 0;
  // A sum that is late is read while the next one has begun and two more are made.
  widths.n_parts = !spec.is_part() ? 0 : has_late ? 4 : 2;
  if (has_late) widths.n_late = !spec.is_part() ? 2 : spec.n_stages > 1 ? 1 : 0;
  if (spec.n_stages > 1) {
    widths.n_posted = int64_t{spec.n_stages} * (has_late ? 2 : 1);
  }
  widths.layer_inputs = widths.inner = spec.layer_inputs();
  if (const int64_t count = spec.altup.count; count > 0) {
    widths.streams = count * spec.hidden;
    widths.stream_factors = count * count;
    widths.inner = std::max(widths.inner, count);
    widths.aside = spec.hidden;
  }
  for (const LayerSpec& layer : spec.layers) {
    const AttentionSpec& attention = layer.attention;
    const int64_t channels = attention.conv.channels;
    const kernels::RecurrenceShape& state = attention.recurrence.shape;
    const bool recurs = attention.recurrence.is_here();
    widths.qkv = std::max(
        {widths.qkv, attention.product_dim(), 3 * channels, recurs ? state.cols() : int64_t{0}});
    widths.attended =
        std::max({widths.attended, attention.attended_dim(), channels,
                  int64_t{attention.memory.channels}, recurs ? state.values() : int64_t{0}});
    widths.attention_qkv = std::max(widths.attention_qkv, attention.product_dim());
    widths.attention_out = std::max(widths.attention_out, attention.attended_dim());
    if (attention.differential.is_here) {
      widths.heads = std::max(widths.heads, int64_t{attention.n_heads} * attention.head_dim);
    }
    if (attention.recurrence.is_memory) widths.memory = std::max(widths.memory, state.values());
    const int64_t parts = layer.mlp.gate_deviations.has_value() ? 2 : 1;
    widths.inner = std::max<int64_t>({widths.inner, parts * layer.mlp.inter, layer.laurel_rank});
    if (layer.wiring == Wiring::kParallel) {
      widths.parallel_inner = std::max(widths.parallel_inner, parts * layer.mlp.inter);
    }
    if (layer.laurel_rank > 0) widths.aside = spec.hidden;
    if (!attention.head_borders.empty()) {
      widths.all_heads =
          std::max(widths.all_heads, int64_t{attention.head_borders.back()} * attention.head_dim);
    }
    widths.q_latent = std::max<int64_t>(widths.q_latent, attention.mla.q_rank);
    if (recurs && state.is_selective()) {
      widths.q_latent = std::max(widths.q_latent, attention.recurrence.n_factors());
    }
    WidenForLatents(attention, &widths);
    if (const WkvSpec& wkv = attention.wkv; wkv.is_here()) {
      const int64_t width = int64_t{wkv.n_heads} * wkv.head_dim;
      widths.shifted = 6 * int64_t{spec.hidden};
      widths.attended = std::max(widths.attended, width);
      widths.first_value = std::max(widths.first_value, width);
      widths.time_mix = std::max(widths.time_mix, 7 * width);
      widths.waist = std::max<int64_t>(
          {widths.waist, wkv.decay_rank, wkv.rate_rank, wkv.value_rank, wkv.gate_rank});
    }
    const MoeSpec& moe = layer.moe;
    if (moe.apart) widths.aside = spec.hidden;
    const int64_t top_k = moe.rule.top_k;
    widths.experts = std::max<int64_t>(widths.experts, moe.n_experts);
    widths.choices = std::max(widths.choices, top_k);
    widths.expert_inner = std::max(widths.expert_inner, top_k * moe.inter);
    widths.expert_rows = std::max(widths.expert_rows, top_k * spec.hidden);
    widths.row_gates = std::max<int64_t>(widths.row_gates, layer.mlp.row_gate ? 1 : 0);
  }
  return widths;
}

}  // namespace

int64_t Decoder::ActivationBytes(const ModelSpec& spec, int32_t max_batch_tokens,
                                 kernels::DType dtype) {
  const Widths widths = WidestLayer(spec);
  return max_batch_tokens * (kernels::RowBytes(dtype, widths.activations(spec.hidden)) +
                             widths.words() * int64_t{sizeof(float)});
}

absl::Status Decoder::AllocateBuffers(kernels::Device& device, int32_t max_batch_tokens) {
  const Widths widths = WidestLayer(spec_);
  struct Wanted {
    std::unique_ptr<kernels::Buffer>* buffer;
    int64_t cols;
    kernels::DType dtype;
  };
  const kernels::DType f32 = kernels::DType::kF32;
  const Wanted all[] = {
      {&x_, spec_.hidden, dtype_},
      {&normed_, spec_.hidden, dtype_},
      {&qkv_, widths.qkv, dtype_},
      {&attended_, widths.attended, dtype_},
      {&q_latent_, widths.q_latent, dtype_},
      {&heads_, widths.heads, dtype_},
      {&inner_, widths.inner, dtype_},
      {&shifted_, widths.shifted, dtype_},
      {&time_mix_, widths.time_mix, dtype_},
      {&waist_, widths.waist, dtype_},
      {&first_value_, widths.first_value, dtype_},
      {&memory_, widths.memory, dtype_},
      {&index_keys_, widths.index_keys, dtype_},
      {&index_weights_, widths.index_weights, f32},
      {&index_places_, widths.index_places, f32},
      {&route_logits_, widths.experts, f32},
      {&row_gates_, widths.row_gates, f32},
      {&chosen_, widths.choices, f32},
      {&chosen_weight_, widths.choices, f32},
      {&expert_inner_, widths.expert_inner, dtype_},
      {&expert_rows_, widths.expert_rows, dtype_},
      {&all_heads_, widths.all_heads, dtype_},
      {&layer_inputs_, widths.layer_inputs, dtype_},
      {&streams_, widths.streams, dtype_},
      {&stream_factors_, widths.stream_factors, f32},
      {&aside_, widths.aside, dtype_},
  };
  for (const Wanted& wanted : all) {
    if (wanted.cols == 0) continue;
    HEDDLE_ASSIGN_OR_RETURN(
        *wanted.buffer,
        device.Allocate(max_batch_tokens * kernels::RowBytes(wanted.dtype, wanted.cols)));
  }
  strides_ = {.qkv = widths.attention_qkv,
              .attended = widths.attention_out,
              .heads = widths.attention_heads,
              .inner = widths.parallel_inner};
  parts_.resize(static_cast<size_t>(widths.n_parts));
  posted_.resize(static_cast<size_t>(widths.n_posted));
  late_rows_.resize(static_cast<size_t>(widths.n_late));
  for (auto* rows : {&parts_, &posted_, &late_rows_}) {
    for (auto& buffer : *rows) {
      HEDDLE_ASSIGN_OR_RETURN(
          buffer, device.Allocate(max_batch_tokens * kernels::RowBytes(dtype_, spec_.hidden)));
    }
  }
  return absl::OkStatus();
}

absl::Status Decoder::ReserveLogits(kernels::Device& device, int32_t rows) {
  const int64_t bytes = int64_t{rows} * spec_.own_vocab() * int64_t{sizeof(float)};
  if (!spec_.is_part() || bytes == 0) return absl::OkStatus();
  HEDDLE_ASSIGN_OR_RETURN(own_logits_, device.Allocate(bytes));
  return absl::OkStatus();
}

}  // namespace heddle::engine
