// The decoder's layers with latent attention, and their indexers.
#include "engine/model/decoder.h"

namespace heddle::engine {
namespace {

using kernels::Tensor;

constexpr float kIndexKeyNormEps = 1e-6f;  // of DeepSeek's and GLM's indexers alike

}  // namespace

// A choice is made only where some row sees enough; keys are kept for later rows in any case.
void Decoder::ChoosePositions(kernels::Ops& ops, int32_t layer, Tensor in, Tensor latent,
                              const KvStorage& cache) {
  const AttentionSpec& attention = spec_.layers[layer].attention;
  const IndexerSpec& indexer = attention.mla.indexer;
  if (!indexer.is_here()) return;
  const IndexerWeights& weights = weights_.layers[layer].mla.indexer;
  const kernels::KvCacheView& keys = cache.indexer(first_kv_layer_ + layer);
  const auto n_tokens = static_cast<int32_t>(in.rows);
  const bool chooses = ops.SeesMoreThan(keys.group, indexer.top_k);
  const Tensor k = View(*index_keys_, n_tokens, indexer.head_dim);
  ops.Linear({.x = in, .weight = weights.k.matrix.get(), .out = k});
  ops.Norm({.kind = NormKind::kLayer,
            .x = k,
            .weight = weights.k_norm.weight.data(),
            .bias = weights.k_norm.bias.data(),
            .eps = kIndexKeyNormEps,
            .out = k});
  const Tensor q =
      Spread(*heads_, strides_.heads, n_tokens, int64_t{indexer.n_heads} * indexer.head_dim);
  if (chooses) ops.Linear({.x = latent, .weight = weights.q.matrix.get(), .out = q});
  ops.RopeKvWrite(
      {.q = chooses ? q : Tensor{},
       .k = k,
       .n_heads = chooses ? indexer.n_heads : 0,
       .cos_sin = static_cast<const float*>(rotations_[rotation_of_layer_[layer]].cos_sin->data()),
       .rotary_dim = attention.mla.rope_dim,
       .layout = indexer.layout,
       .cache = keys});
  choice_ = {};
  if (!chooses) return;
  const Tensor of_heads = View(*index_weights_, n_tokens, indexer.n_heads);
  ops.Linear({.x = in, .weight = weights.weights.matrix.get(), .out = of_heads, .out_f32 = true});
  auto* const places = static_cast<int32_t*>(index_places_->data());
  ops.SelectPositions({.q = q,
                       .weights = of_heads,
                       .n_heads = indexer.n_heads,
                       .cache = keys,
                       .top_k = indexer.top_k,
                       .out = places});
  choice_ = {places, indexer.top_k};
}

kernels::HeadLinearArgs Decoder::LatentQuery(kernels::Ops& ops, int32_t layer, Tensor in, Tensor q,
                                             Tensor row, const KvStorage& cache) {
  const AttentionSpec& attention = spec_.layers[layer].attention;
  const MlaSpec& mla = attention.mla;
  const MlaWeights& weights = weights_.layers[layer].mla;
  const auto n_tokens = static_cast<int32_t>(in.rows);
  ops.Linear({.x = in,
              .weight = weights.kv_a.matrix.get(),
              .out = row,
              .adapters = Adapters(layer, AdapterSite::kKvA)});
  kernels::NormArgs norm{.eps = mla.norm_eps};
  norm.x = norm.out = Columns(row, mla.rope_dim, mla.kv_rank);
  norm.weight = weights.kv_a_norm.data();
  norm.adapters = Adapters(layer, AdapterSite::kKeyNorm);
  ops.Norm(norm);
  if (mla.q_rank > 0) {
    const Tensor latent = View(*q_latent_, n_tokens, mla.q_rank);
    ops.Linear({.x = in,
                .weight = weights.q_a.matrix.get(),
                .out = latent,
                .adapters = Adapters(layer, AdapterSite::kQueryA)});
    norm.x = norm.out = latent;
    norm.weight = weights.q_a_norm.data();
    norm.adapters = Adapters(layer, AdapterSite::kQueryNorm);
    ops.Norm(norm);
    ChoosePositions(ops, layer, in, latent, cache);
    in = latent;
  }
  const int32_t n_heads = attention.n_heads;
  const Tensor heads = Spread(*heads_, strides_.heads, n_tokens, int64_t{n_heads} * mla.q_dim());
  ops.Linear({.x = in,
              .weight = weights.q.matrix.get(),
              .out = heads,
              .adapters = Adapters(layer, AdapterSite::kQueryB)});
  // All that follows is linear in the queries, so that both ways to attend see them sharpened.
  if (const SharpenSpec& sharpen = attention.sharpen; sharpen.factor != 0.0f) {
    ops.Sharpen({heads, sharpen.factor, sharpen.length, sharpen.offset});
  }
  const kernels::HeadLinearArgs absorbing = {.x = heads,
                                             .x_step = mla.q_dim(),
                                             .heads = weights.k_up.get(),
                                             .carried = mla.rope_dim,
                                             .out = q,
                                             .out_step = mla.rope_dim + mla.kv_rank,
                                             .adapters = Adapters(layer, AdapterSite::kKeyHeads)};
  ops.HeadLinear(absorbing);
  return absorbing;
}

void Decoder::LatentAttention(kernels::Ops& ops, int32_t layer, int32_t n_tokens,
                              const KvStorage& cache) {
  const AttentionSpec& attention = spec_.layers[layer].attention;
  const MlaSpec& mla = attention.mla;
  const LayerWeights& weights = weights_.layers[layer];
  const int64_t q_cols = int64_t{attention.n_heads} * attention.head_dim;
  const Tensor qkv = Spread(*qkv_, strides_.qkv, n_tokens, attention.qkv_dim());
  const Tensor q = Columns(qkv, 0, q_cols);
  const Tensor row = Columns(qkv, q_cols, attention.head_dim);
  const Tensor attended = Spread(*attended_, strides_.attended, n_tokens, q_cols);
  const kernels::HeadLinearArgs queries =
      LatentQuery(ops, layer, Normed(ops, InputOfAttention(layer, n_tokens)), q, row, cache);
  ops.RopeKvWrite(
      {.q = q,
       .k = row,
       .n_heads = attention.n_heads,
       .cos_sin = static_cast<const float*>(rotations_[rotation_of_layer_[layer]].cos_sin->data()),
       .rotary_dim = mla.rope_dim,
       .layout = attention.rope.layout,
       .cache = cache.layer(first_kv_layer_ + layer)});
  const Tensor values =
      Spread(*heads_, strides_.heads, n_tokens, int64_t{attention.n_heads} * mla.v_dim);
  ops.AttendLatents(
      {.attention = {.q = q,
                     .n_heads = attention.n_heads,
                     .cache = cache.layer(first_kv_layer_ + layer),
                     .scale = attention.scale,
                     .out = attended,
                     .rotation = RotationOf(layer),
                     .chosen = mla.indexer.top_k > 0 ? choice_ : kernels::ChosenPlaces{}},
       .queries = queries,
       .values = {.x = Columns(attended, mla.rope_dim, q_cols - mla.rope_dim),
                  .x_step = attention.head_dim,
                  .heads = weights.mla.v_up.get(),
                  .out = values,
                  .out_step = mla.v_dim,
                  .adapters = Adapters(layer, AdapterSite::kValueHeads)}});
  AddToStream(ops, layer, AdapterSite::kOut, values);
}

}  // namespace heddle::engine
