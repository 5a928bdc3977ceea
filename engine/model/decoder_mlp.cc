// The decoder's MLPs and mixtures of experts.
#include <optional>

#include "engine/model/decoder.h"

namespace heddle::engine {
namespace {

using kernels::Tensor;

}  // namespace

void Decoder::MlpIn(kernels::Ops& ops, int32_t layer, int32_t n_tokens, const KvStorage& cache) {
  const LayerSpec& spec = spec_.layers[layer];
  const LayerWeights& weights = weights_.layers[layer];
  if (spec.moe.n_experts == 0 && spec.mlp.inter == 0) return;
  if (spec.moe.apart) return ExpertsApart(ops, layer, n_tokens);
  BlockInput in = InputOf(layer, weights.mlp_norm, AdapterSite::kMlpNorm, n_tokens);
  const MlpSpec& mlp = spec.mlp;
  if (mlp.token_shift) {
    in = {Shift(ops, layer, Normed(ops, in), weights.wkv.mlp_shift.data(), 1, cache), std::nullopt};
  }
  const bool is_only_reader = spec.moe.n_experts == 0 && !mlp.row_gate && mlp.in_scale == 1.0f;
  if (!is_only_reader) in = {Normed(ops, in), std::nullopt};
  Scale(ops, mlp.in_scale, in.x);
  if (spec.moe.n_experts > 0) Experts(ops, layer, in.x);
  if (mlp.inter == 0) return;
  const Tensor inner = Inner(layer, n_tokens);
  if (mlp.gate_deviations.has_value()) {
    const Tensor gate_up = Spread(*inner_, inner.stride, n_tokens, 2 * int64_t{mlp.inter});
    ops.Linear({.x = in.x,
                .weight = weights.up.matrix.get(),
                .bias = weights.up.bias.data(),
                .out = gate_up,
                .adapters = Adapters(layer, AdapterSite::kUp),
                .norm = in.norm});
    ops.SparseGate({gate_up, *mlp.gate_deviations, mlp.activation});
    return;
  }
  const bool is_read_once = !mlp.row_gate && mlp.out_scale == 1.0f && !mlp.xielu.is_here;
  ops.Linear({.x = in.x,
              .weight = weights.up.matrix.get(),
              .bias = weights.up.bias.data(),
              .epilogue = mlp.gated ? kernels::Epilogue::kGated : kernels::Epilogue::kNone,
              .activation = mlp.activation,
              .out = inner,
              .adapters = Adapters(layer, AdapterSite::kUp),
              .norm = in.norm,
              .reader = is_read_once ? weights.down.matrix.get() : nullptr});
  if (mlp.xielu.is_here) {
    kernels::XieluArgs xielu = weights.xielu;
    xielu.x = inner;
    ops.Xielu(xielu);
  }
  Scale(ops, mlp.out_scale, inner);
  if (!mlp.row_gate) return;
  const Tensor gates = View(*row_gates_, n_tokens, 1);
  ops.Linear({.x = in.x,
              .weight = weights.row_gate.matrix.get(),
              .out = gates,
              .out_f32 = true,
              .adapters = Adapters(layer, AdapterSite::kRowGate)});
  ops.GateRows(gates, inner);
}

// Attention comes between the two halves of a parallel layer's MLP.
Tensor Decoder::Inner(int32_t layer, int32_t n_tokens) const {
  const MlpSpec& mlp = spec_.layers[layer].mlp;
  const int64_t cols = (mlp.gate_deviations.has_value() ? 2 : 1) * int64_t{mlp.inter};
  const bool is_parallel = spec_.layers[layer].wiring == Wiring::kParallel;
  const int64_t stride = is_parallel ? strides_.inner : cols;
  return Spread(*inner_, stride, n_tokens, mlp.inter);
}

void Decoder::Route(kernels::Ops& ops, int32_t layer, Tensor in) {
  const MoeSpec& moe = spec_.layers[layer].moe;
  const MoeWeights& weights = weights_.layers[layer].moe;
  const auto n_tokens = static_cast<int32_t>(in.rows);
  const Tensor logits = View(*route_logits_, n_tokens, moe.n_experts);
  ops.Linear({.x = in,
              .weight = weights.router.matrix.get(),
              .bias = weights.router.bias.data(),
              .out = logits,
              .out_f32 = true,
              .adapters = Adapters(layer, AdapterSite::kRouter)});
  ops.Route({.logits = logits,
             .choice_bias = weights.choice_bias.data(),
             .expert_scale = weights.expert_scale.data(),
             .rule = moe.rule,
             .experts = static_cast<int32_t*>(chosen_->data()),
             .weights = static_cast<float*>(chosen_weight_->data())});
}

void Decoder::Experts(kernels::Ops& ops, int32_t layer, Tensor in) {
  Route(ops, layer, in);
  const bool is_part = spec_.layers[layer].mlp_is_part;
  if (is_part) part_ = NextPart(in.rows);
  MixExperts(ops, layer, in, is_part ? part_ : Stream(static_cast<int32_t>(in.rows)), !is_part);
}

void Decoder::MixExperts(kernels::Ops& ops, int32_t layer, Tensor in, Tensor out, bool adds) {
  const MoeSpec& moe = spec_.layers[layer].moe;
  const MoeWeights& weights = weights_.layers[layer].moe;
  const int32_t n_choices = static_cast<int32_t>(in.rows) * moe.rule.top_k;
  ops.ExpertMix({.x = in,
                 .experts = static_cast<const int32_t*>(chosen_->data()),
                 .weights = static_cast<const float*>(chosen_weight_->data()),
                 .top_k = moe.rule.top_k,
                 .first_expert = moe.first_here,
                 .up = weights.up.get(),
                 .down = weights.down.get(),
                 .up_bias = weights.up_bias.data(),
                 .down_bias = weights.down_bias.data(),
                 .gated = moe.gated,
                 .activation = moe.activation,
                 .inner = View(*expert_inner_, n_choices, moe.inter),
                 .rows = View(*expert_rows_, n_choices, spec_.hidden),
                 .out = out,
                 .adds = adds,
                 .weighs_inputs = moe.weighs_inputs,
                 .up_adapters = Adapters(layer, AdapterSite::kExpertUp),
                 .down_adapters = Adapters(layer, AdapterSite::kExpertDown)});
}

void Decoder::MlpOut(kernels::Ops& ops, int32_t layer, int32_t n_tokens) {
  const LayerSpec& spec = spec_.layers[layer];
  if (spec.moe.apart) return;
  if (spec.mlp.inter > 0) {
    AddToStream(ops, layer, AdapterSite::kDown, Inner(layer, n_tokens));
  } else if (spec.mlp_is_part) {  // of experts alone, or without a share
    AddToStream(ops, layer, AdapterSite::kDown, {nullptr, n_tokens, 0, 0});
  }
}

}  // namespace heddle::engine
