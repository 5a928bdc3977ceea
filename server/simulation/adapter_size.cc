#include "server/simulation/adapter_size.h"

namespace heddle::server {
namespace {

using engine::AttentionSpec;
using engine::LayerSpec;
using engine::MlaSpec;

// Inputs and outputs of all linears of a latent attention but those that are absorbed into others.
int64_t LatentWidth(const AttentionSpec& attention, int64_t hidden) {
  const MlaSpec& mla = attention.mla;
  const int64_t queries = int64_t{attention.n_heads} * mla.q_dim();
  const int64_t query =
      mla.q_rank > 0 ? hidden + mla.q_rank + mla.q_rank + queries : hidden + queries;
  const int64_t keys = hidden + mla.kv_rank + mla.rope_dim;
  return query + keys + int64_t{attention.n_heads} * mla.v_dim + hidden;
}

int64_t AttentionWidth(const AttentionSpec& attention, int64_t hidden) {
  if (attention.linear) return 2 * hidden;
  if (const int64_t channels = attention.conv.channels; channels > 0) {
    return (hidden + 3 * channels) + (channels + hidden);
  }
  if (attention.n_heads == 0) return 0;  // recurrences have no adapters either
  if (attention.mla.kv_rank > 0) return LatentWidth(attention, hidden);
  const int64_t queries = int64_t{attention.n_heads} * attention.head_dim;
  const int64_t keys = int64_t{attention.n_kv_heads} * attention.head_dim;
  return (hidden + queries) + 2 * (hidden + keys) + (queries + hidden);
}

int64_t MlpWidth(const engine::MlpSpec& mlp, int64_t hidden) {
  return mlp.inter == 0 ? 0 : (hidden + mlp.inter) * (mlp.gated ? 3 : 2);
}

}  // namespace

AdapterSize SizeOfAdapter(const engine::ModelSpec& spec, int32_t rank, int64_t element_bytes,
                          int64_t page_bytes) {
  constexpr double kRoom = 1.03;
  int64_t width = 0;  // elements per rank
  for (const LayerSpec& layer : spec.layers) {
    width += AttentionWidth(layer.attention, spec.hidden) + MlpWidth(layer.mlp, spec.hidden);
  }
  const int64_t bytes = width * rank * element_bytes;
  const auto pages =
      static_cast<int64_t>(static_cast<double>(bytes) * kRoom / static_cast<double>(page_bytes)) +
      1;
  return {bytes, static_cast<int32_t>(pages)};
}

}  // namespace heddle::server
