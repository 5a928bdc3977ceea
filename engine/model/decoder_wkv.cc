// The decoder's layers with RWKV-7's time mix in place of attention.
#include "engine/model/decoder.h"

namespace heddle::engine {
namespace {

using kernels::Tensor;

// Inputs of the products, in the order of WkvWeights::shift.
enum Mix : int64_t { kR, kW, kK, kV, kA, kG, kMixes };

}  // namespace

Tensor Decoder::Shift(kernels::Ops& ops, int32_t layer, Tensor x, const float* mix, int32_t n_mixes,
                      const KvStorage& cache) {
  const bool before_mlp = n_mixes == 1;
  const WkvSpec& wkv = spec_.layers[layer].attention.wkv;
  const kernels::WkvState state(wkv.n_heads, wkv.head_dim, spec_.hidden);
  const Tensor out =
      View(*shifted_, static_cast<int32_t>(x.rows), n_mixes * static_cast<int32_t>(x.cols));
  ops.TokenShift({.x = x,
                  .mix = mix,
                  .n_mixes = n_mixes,
                  .cache = cache.layer(first_kv_layer_ + layer),
                  .page_tokens = cache.page_tokens(),
                  .place = state.shifts +
                           (before_mlp ? kernels::WkvState::kShiftRows * int64_t{spec_.hidden} : 0),
                  .out = out});
  return out;
}

void Decoder::MixTime(kernels::Ops& ops, int32_t layer, Tensor in, const KvStorage& cache) {
  const WkvSpec& wkv = spec_.layers[layer].attention.wkv;
  const WkvWeights& weights = weights_.layers[layer].wkv;
  const auto n_tokens = static_cast<int32_t>(in.rows);
  const int32_t width = wkv.n_heads * wkv.head_dim;
  // The gate's input is the last one.
  const auto n_mixes = static_cast<int32_t>(wkv.gate_rank > 0 ? kMixes : kG);
  const Tensor shifted = Shift(ops, layer, in, weights.shift.data(), n_mixes, cache);
  const Tensor rows = View(*time_mix_, n_tokens, 7 * width);
  const auto part = [&](int64_t i) { return Columns(rows, i * width, width); };
  const auto mixed = [&](Mix m) { return Columns(shifted, m * spec_.hidden, spec_.hidden); };
  const auto whole = [&](Mix m, const LinearWeights& linear, Tensor out) {
    ops.Linear({.x = mixed(m), .weight = linear.matrix.get(), .out = out});
  };
  // Two products with a narrow waist, where values may be squashed.
  const auto narrow = [&](Mix m, const LinearWeights& first, const LinearWeights& second,
                          std::optional<kernels::Squash> squash, Tensor out) {
    const Tensor waist = View(*waist_, n_tokens, static_cast<int32_t>(first.matrix->rows));
    ops.Linear({.x = mixed(m), .weight = first.matrix.get(), .out = waist});
    if (squash.has_value()) ops.SquashElements(*squash, waist);
    ops.Linear({.x = waist, .weight = second.matrix.get(), .bias = second.bias.data(), .out = out});
  };
  whole(kR, weights.r, part(0));
  whole(kK, weights.k, part(1));
  whole(kV, weights.v, part(2));
  narrow(kW, weights.w1, weights.w2, kernels::Squash::kTanh, part(3));
  narrow(kA, weights.a1, weights.a2, std::nullopt, part(4));
  const bool has_gate = wkv.gate_rank > 0;
  if (has_gate) narrow(kG, weights.g1, weights.g2, kernels::Squash::kSigmoid, part(5));
  const bool is_first = wkv.value_rank == 0;
  if (!is_first) narrow(kV, weights.v1, weights.v2, std::nullopt, part(6));
  const Tensor out = View(*attended_, n_tokens, width);
  ops.TimeMix({.n_heads = wkv.n_heads,
               .head_dim = wkv.head_dim,
               .r = part(0),
               .k = part(1),
               .v = part(2),
               .w = part(3),
               .a = part(4),
               .m = is_first ? Tensor{} : part(6),
               .first_value = View(*first_value_, n_tokens, width),
               .gate = has_gate ? part(5) : Tensor{},
               .key_scale = weights.key_scale.data(),
               .key_mix = weights.key_mix.data(),
               .bonus = weights.bonus.data(),
               .norm = weights.norm.data(),
               .norm_bias = weights.norm_bias.data(),
               .norm_eps = wkv.norm_eps,
               .cache = cache.layer(first_kv_layer_ + layer),
               .page_tokens = cache.page_tokens(),
               .out = out});
  AddToStream(ops, layer, AdapterSite::kOut, out);
}

}  // namespace heddle::engine
