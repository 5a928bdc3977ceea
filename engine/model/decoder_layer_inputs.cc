// The decoder's layers in Gemma 3n and 4, as far as they have more than attention, MLP and experts:
// inputs of their own, norms of values, and experts with norms of their own.
#include <cmath>

#include "engine/model/decoder.h"

namespace heddle::engine {
namespace {

using kernels::Tensor;

}  // namespace

// Kernels that norm heads have weights and rotate; these heads are few.
void Decoder::NormValues(kernels::Ops& ops, const AttentionSpec& attention, Tensor v) {
  for (int32_t head = 0; head < attention.n_kv_heads; ++head) {
    const Tensor own = Columns(v, int64_t{head} * attention.head_dim, attention.head_dim);
    ops.Norm({.kind = NormKind::kRms, .x = own, .eps = spec_.norm_eps, .out = own});
  }
}

// The sum of two vectors of variance 1 is divided by the root of 2. The product of the embedding
// would be divided by the root of hidden before its norm, which is the same with a larger epsilon.
void Decoder::MakeLayerInputs(kernels::Ops& ops, Tensor embedding) {
  const int64_t dim = spec_.layer_input_dim;
  const auto rows = static_cast<int32_t>(embedding.rows);
  const Tensor inputs = View(*layer_inputs_, rows, static_cast<int32_t>(spec_.layer_inputs()));
  ops.Embed(*weights_.layer_inputs, std::sqrt(static_cast<float>(dim)), inputs);
  const Tensor product = View(*inner_, rows, static_cast<int32_t>(inputs.cols));
  ops.Linear({.x = embedding, .weight = weights_.layer_inputs_in.get(), .out = product});
  const auto by_layer = [&](Tensor tensor) {
    return Tensor{tensor.data, tensor.rows * spec_.n_layers(), dim, dim};
  };
  ops.Norm({.kind = spec_.norm,
            .x = by_layer(product),
            .weight = weights_.layer_inputs_norm.data(),
            .eps = spec_.norm_eps * static_cast<float>(spec_.hidden),
            .weight_offset = spec_.norm_weight_offset,
            .out = by_layer(product)});
  // Only the first half of this norm is used: inputs += product.
  ops.Norm({.kind = spec_.norm,
            .x = product,
            .residual = inputs,
            .eps = spec_.norm_eps,
            .out = product});
  ops.Scale(inputs, std::sqrt(0.5f));
}

void Decoder::AddToStream(kernels::Ops& ops, Tensor added) {
  ops.Norm({.kind = spec_.norm,
            .x = added,
            .residual = Stream(static_cast<int32_t>(added.rows)),
            .eps = spec_.norm_eps,
            .out = added});
}

Tensor Decoder::OwnInput(kernels::Ops& ops, int32_t layer, Tensor x) {
  const LayerWeights& weights = weights_.layers[layer];
  const auto n_tokens = static_cast<int32_t>(x.rows);
  const int32_t dim = spec_.layer_input_dim;
  const Tensor gate = View(*inner_, n_tokens, dim);
  ops.Linear({.x = x,
              .weight = weights.input_gate.matrix.get(),
              .activation = spec_.layers[layer].mlp.activation,
              .out = gate});
  const Tensor all = View(*layer_inputs_, n_tokens, static_cast<int32_t>(spec_.layer_inputs()));
  ops.Multiply(Columns(all, int64_t{layer} * dim, dim), gate);
  const Tensor added = View(*normed_, n_tokens, spec_.hidden);
  ops.Linear({.x = gate, .weight = weights.input_out.matrix.get(), .out = added});
  ops.Norm({.kind = spec_.norm,
            .x = added,
            .weight = weights.input_post_norm.data(),
            .eps = spec_.norm_eps,
            .weight_offset = spec_.norm_weight_offset,
            .out = added});
  return added;
}

void Decoder::EndLayer(kernels::Ops& ops, int32_t layer, int32_t n_tokens) {
  if (spec_.altup.count > 0) return CorrectStreams(ops, layer, n_tokens);
  const Tensor x = Stream(n_tokens);
  if (spec_.layer_input_dim > 0) AddToStream(ops, OwnInput(ops, layer, x));
  Scale(ops, weights_.layers[layer].stream_scale, x);
}

void Decoder::ExpertsApart(kernels::Ops& ops, int32_t layer, int32_t n_tokens) {
  const LayerWeights& weights = weights_.layers[layer];
  const MlpSpec& mlp = spec_.layers[layer].mlp;
  const Tensor normed = View(*normed_, n_tokens, spec_.hidden);
  const Tensor aside = View(*aside_, n_tokens, spec_.hidden);
  const auto norm = [&](Tensor x, const DeviceVector& weight, Tensor out) {
    ops.Norm({.kind = spec_.norm,
              .x = x,
              .weight = weight.data(),
              .eps = spec_.norm_eps,
              .weight_offset = spec_.norm_weight_offset,
              .out = out});
  };
  norm(Stream(n_tokens), weights.moe.router_norm, normed);
  Route(ops, layer, normed);
  norm(Stream(n_tokens), weights.moe.norm, normed);
  MixExperts(ops, layer, normed, aside, /*adds=*/false);
  norm(aside, weights.moe.post_norm, aside);
  const BlockInput in = InputOf(layer, weights.mlp_norm, AdapterSite::kMlpNorm, n_tokens);
  const Tensor inner = View(*inner_, n_tokens, mlp.inter);
  ops.Linear({.x = in.x,
              .weight = weights.up.matrix.get(),
              .epilogue = kernels::Epilogue::kGated,
              .activation = mlp.activation,
              .out = inner,
              .adapters = Adapters(layer, AdapterSite::kUp),
              .norm = in.norm,
              .reader = weights.down.matrix.get()});
  ops.Linear({.x = inner,
              .weight = weights.down.matrix.get(),
              .out = normed,
              .adapters = Adapters(layer, AdapterSite::kDown)});
  norm(normed, weights.moe.mlp_norm, normed);
  kernels::NormArgs sum = NormOf(weights.mlp_post_norm, aside, aside);
  sum.residual = normed;
  sum.adapters = Adapters(layer, AdapterSite::kMlpPostNorm);
  ops.Norm(sum);
  AddToStream(ops, aside);
}

}  // namespace heddle::engine
