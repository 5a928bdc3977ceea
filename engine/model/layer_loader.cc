#include "engine/model/layer_loader.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/parallel/cut_sources.h"

namespace heddle::engine {
namespace {

using kernels::WeightSource;

// A fused gate_up is given to the device as two sources, like separate gate and up.
absl::StatusOr<LinearWeights> Up(TensorLoader& loader, const LayerNames& names, const MlpSpec& mlp,
                                 const LayerShare& share) {
  const Range inner = share.inner;
  Cut cut = CutRows({inner}, share);
  if (mlp.gated) cut.rows->push_back({mlp.inter + inner.first, inner.count});
  if (mlp.gated && loader.names().up_first) std::swap(cut.rows->front(), cut.rows->back());
  return loader.Linear({&names.gate_up, &names.gate, &names.up}, {&names.gate_bias, &names.up_bias},
                       cut);
}

// Loads a single row, which may be stored as a vector.
absl::StatusOr<LinearWeights> RowGate(TensorLoader& loader, const std::string& name) {
  HEDDLE_ASSIGN_OR_RETURN(const CheckpointTensor* tensor, loader.Find(name));
  const WeightSource source = SourceOf(*tensor);
  LinearWeights gate;
  HEDDLE_ASSIGN_OR_RETURN(gate.matrix,
                          loader.Pack({&source, 1}, {&tensor, 1}, {}, WeightRole::kExact));
  return gate;
}

float Softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }

// The alphas are trained before their softplus.
absl::Status Xielu(TensorLoader& loader, const LayerNames& names, const XieluSpec& spec,
                   kernels::XieluArgs* args) {
  if (!spec.is_here) return absl::OkStatus();
  std::vector<float> values = {spec.positive, spec.negative, spec.beta, spec.eps};
  if (!names.xielu_positive.empty()) {
    HEDDLE_ASSIGN_OR_RETURN(values, loader.Values({&names.xielu_positive, &names.xielu_negative,
                                                   &names.xielu_beta, &names.xielu_eps}));
  }
  args->alpha_positive = Softplus(values[0]);
  args->alpha_negative = values[2] + Softplus(values[1]);
  args->beta = values[2];
  args->eps = values[3];
  return absl::OkStatus();
}

absl::Status LayerInput(TensorLoader& loader, const LayerNames& names, LayerWeights* layer) {
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<float> scale, loader.Values({&names.stream_scale}));
  if (!scale.empty()) layer->stream_scale = scale.front();
  if (names.input_gate.empty()) return absl::OkStatus();
  HEDDLE_ASSIGN_OR_RETURN(layer->input_gate, loader.Linear({&names.input_gate}, {}));
  HEDDLE_ASSIGN_OR_RETURN(layer->input_out, loader.Linear({&names.input_out}, {}));
  HEDDLE_ASSIGN_OR_RETURN(layer->input_post_norm, loader.Vector({&names.input_post_norm}));
  return absl::OkStatus();
}

absl::Status Streams(TensorLoader& loader, const LayerNames& names, LayerWeights* layer) {
  if (!names.altup_router.empty()) {
    AltUpWeights& altup = layer->altup;
    HEDDLE_ASSIGN_OR_RETURN(std::vector<float> norm, loader.Values({&names.altup_router_norm}));
    for (float& weight : norm) weight /= static_cast<float>(norm.size());
    HEDDLE_ASSIGN_OR_RETURN(altup.router_norm, loader.Upload(norm));
    const auto exact = [&loader](const std::string& name) {
      return loader.Linear({&name}, {}, {}, WeightRole::kExact);
    };
    HEDDLE_ASSIGN_OR_RETURN(altup.router, exact(names.altup_router));
    HEDDLE_ASSIGN_OR_RETURN(altup.predict, exact(names.altup_predict));
    HEDDLE_ASSIGN_OR_RETURN(altup.correct, exact(names.altup_correct));
    HEDDLE_ASSIGN_OR_RETURN(altup.scale, loader.Vector({&names.altup_scale}));
  }
  if (names.laurel_in.empty()) return absl::OkStatus();
  HEDDLE_ASSIGN_OR_RETURN(layer->laurel_in, loader.Linear({&names.laurel_in}, {}));
  HEDDLE_ASSIGN_OR_RETURN(layer->laurel_out, loader.Linear({&names.laurel_out}, {}));
  HEDDLE_ASSIGN_OR_RETURN(layer->laurel_norm, loader.Vector({&names.laurel_norm}));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LayerWeights> LoadLayer(TensorLoader& loader, const LayerNames& names,
                                       const LayerSpec& spec, const LayerShare& share) {
  LayerWeights layer;
  HEDDLE_ASSIGN_OR_RETURN(layer.attention_norm, loader.Norm(names.attn_norm, names.attn_norm_bias));
  HEDDLE_ASSIGN_OR_RETURN(layer.attention_post_norm,
                          loader.Norm(names.attn_post_norm, names.attn_post_norm_bias));
  HEDDLE_RETURN_IF_ERROR(LoadAttention(loader, names, spec.attention, share.attention, &layer));
  HEDDLE_ASSIGN_OR_RETURN(layer.q_norm, loader.Vector({&names.q_norm}));
  HEDDLE_ASSIGN_OR_RETURN(layer.k_norm, loader.Vector({&names.k_norm}));
  if (spec.attention.qk_norm_plain) {
    const std::vector<float> ones(static_cast<size_t>(spec.attention.head_dim), 1.0f);
    HEDDLE_ASSIGN_OR_RETURN(layer.q_norm, loader.Upload(ones));
    HEDDLE_ASSIGN_OR_RETURN(layer.k_norm, loader.Upload(ones));
  }
  HEDDLE_ASSIGN_OR_RETURN(layer.mlp_norm, loader.Norm(names.mlp_norm, names.mlp_norm_bias));
  HEDDLE_ASSIGN_OR_RETURN(layer.mlp_post_norm,
                          loader.Norm(names.mlp_post_norm, names.mlp_post_norm_bias));
  if (spec.mlp.inter > 0) {
    HEDDLE_ASSIGN_OR_RETURN(layer.up, Up(loader, names, spec.mlp, share));
    HEDDLE_ASSIGN_OR_RETURN(layer.down,
                            loader.Linear({&names.down}, {&names.down_bias}, CutInner(share)));
  }
  if (spec.mlp.row_gate && share.inner.count > 0) {
    HEDDLE_ASSIGN_OR_RETURN(layer.row_gate, RowGate(loader, names.row_gate));
  }
  if (spec.moe.n_experts > 0 && share.expert_inner.count > 0 && share.experts.count > 0) {
    HEDDLE_ASSIGN_OR_RETURN(layer.moe, LoadExperts(loader, names, spec.moe, share));
  }
  HEDDLE_RETURN_IF_ERROR(Xielu(loader, names, spec.mlp.xielu, &layer.xielu));
  HEDDLE_RETURN_IF_ERROR(LayerInput(loader, names, &layer));
  HEDDLE_RETURN_IF_ERROR(Streams(loader, names, &layer));
  return layer;
}

}  // namespace heddle::engine
