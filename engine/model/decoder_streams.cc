// Alternating updates and the block beside attention: what the decoder's layers have in Gemma 3n.
#include <cmath>

#include "engine/model/decoder.h"

namespace heddle::engine {
namespace {

using kernels::Tensor;

}  // namespace

Tensor Decoder::OneStream(int32_t index, int32_t n_tokens) {
  const Tensor all = View(*streams_, n_tokens, spec_.altup.count * spec_.hidden);
  return Columns(all, int64_t{index} * spec_.hidden, spec_.hidden);
}

void Decoder::BeginStreams(kernels::Ops& ops, Tensor x) {
  const int32_t count = spec_.altup.count;
  if (count == 0) return;
  const auto n_tokens = static_cast<int32_t>(x.rows);
  ops.CopyRows(x, OneStream(0, n_tokens));
  if (count > 1) {
    const Tensor all = View(*streams_, n_tokens, count * spec_.hidden);
    ops.Linear({.x = x,
                .weight = weights_.altup_in.get(),
                .out = Columns(all, spec_.hidden, int64_t{count - 1} * spec_.hidden)});
  }
  for (int32_t i = 1; i < count; ++i) ops.MatchMagnitude(x, OneStream(i, n_tokens));
  ops.CopyRows(OneStream(spec_.altup.active, n_tokens), x);
}

Tensor Decoder::StreamFactors(kernels::Ops& ops, const AltUpWeights& weights,
                              const LinearWeights& product, int32_t n_tokens) {
  const int32_t count = spec_.altup.count;
  const Tensor normed = View(*normed_, n_tokens, spec_.hidden);
  const Tensor routed = View(*inner_, n_tokens, count);
  const Tensor factors =
      View(*stream_factors_, n_tokens, static_cast<int32_t>(product.matrix->rows));
  ops.Linear({.x = normed,
              .weight = weights.router.matrix.get(),
              .out = routed,
              .norm = kernels::NormArgs{.kind = spec_.norm,
                                        .x = Stream(n_tokens),
                                        .weight = weights.router_norm.data(),
                                        .eps = spec_.norm_eps,
                                        .out = normed}});
  ops.SquashElements(kernels::Squash::kTanh, routed);
  ops.Linear({.x = routed, .weight = product.matrix.get(), .out = factors, .out_f32 = true});
  return factors;
}

void Decoder::PredictStreams(kernels::Ops& ops, int32_t layer, int32_t n_tokens) {
  const AltUpSpec& altup = spec_.altup;
  if (altup.count == 0) return;
  const AltUpWeights& weights = weights_.layers[layer].altup;
  ops.PredictStreams({.streams = View(*streams_, n_tokens, altup.count * spec_.hidden),
                      .count = altup.count,
                      .factors = StreamFactors(ops, weights, weights.predict, n_tokens)});
  ops.CopyRows(OneStream(altup.active, n_tokens), Stream(n_tokens));
}

void Decoder::CorrectStreams(kernels::Ops& ops, int32_t layer, int32_t n_tokens) {
  const AltUpSpec& altup = spec_.altup;
  const AltUpWeights& weights = weights_.layers[layer].altup;
  const Tensor x = Stream(n_tokens);
  ops.CorrectStreams({.streams = View(*streams_, n_tokens, altup.count * spec_.hidden),
                      .count = altup.count,
                      .factors = StreamFactors(ops, weights, weights.correct, n_tokens),
                      .computed = x,
                      .active = altup.active});
  ops.CopyRows(OneStream(altup.active, n_tokens), x);
  if (spec_.layer_input_dim == 0) return;
  const Tensor scaled = View(*normed_, n_tokens, spec_.hidden);
  if (altup.scaled) {
    // The same factors for all rows.
    auto* factors = const_cast<float*>(weights.scale.data());
    ops.CopyRows(x, scaled);
    ops.Multiply({factors, n_tokens, spec_.hidden, /*stride=*/0}, scaled);
  }
  const Tensor added = OwnInput(ops, layer, altup.scaled ? scaled : x);
  for (int32_t i = 1; i < altup.count; ++i) {
    // Only the first half of this norm is used: stream += added.
    ops.Norm({.kind = spec_.norm,
              .x = added,
              .residual = OneStream(i, n_tokens),
              .eps = spec_.norm_eps,
              .out = View(*aside_, n_tokens, spec_.hidden)});
  }
  if (altup.active > 0) ops.CopyRows(OneStream(altup.active, n_tokens), x);
}

void Decoder::EndStreams(kernels::Ops& ops, Tensor x) {
  const int32_t count = spec_.altup.count;
  if (count == 0) return;
  const auto n_tokens = static_cast<int32_t>(x.rows);
  const Tensor first = OneStream(0, n_tokens);
  const Tensor other = View(*normed_, n_tokens, spec_.hidden);
  ops.CopyRows(first, x);
  for (int32_t i = 1; i < count; ++i) {
    ops.Linear({.x = OneStream(i, n_tokens),
                .weight = weights_.altup_out[static_cast<size_t>(i) - 1].get(),
                .out = other});
    ops.MatchMagnitude(first, other);
    AddToStream(ops, other);
  }
  Scale(ops, 1.0f / static_cast<float>(count), x);
}

Tensor Decoder::AddLaurel(kernels::Ops& ops, int32_t layer, const BlockInput& in) {
  const LayerWeights& weights = weights_.layers[layer];
  const Tensor normed = Normed(ops, in);
  const auto n_tokens = static_cast<int32_t>(normed.rows);
  const Tensor inner = View(*inner_, n_tokens, spec_.layers[layer].laurel_rank);
  const Tensor added = View(*aside_, n_tokens, spec_.hidden);
  ops.Linear({.x = normed, .weight = weights.laurel_in.matrix.get(), .out = inner});
  ops.Linear({.x = inner, .weight = weights.laurel_out.matrix.get(), .out = added});
  ops.Norm({.kind = spec_.norm,
            .x = added,
            .weight = weights.laurel_norm.data(),
            .eps = spec_.norm_eps,
            .weight_offset = spec_.norm_weight_offset,
            .out = added});
  AddToStream(ops, added);
  // Only the first half of this norm is used: stream += normed.
  ops.Norm({.kind = spec_.norm,
            .x = normed,
            .residual = Stream(n_tokens),
            .eps = spec_.norm_eps,
            .out = added});
  return normed;
}

}  // namespace heddle::engine
