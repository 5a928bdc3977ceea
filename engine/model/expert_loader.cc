#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/model/expert_sources.h"
#include "engine/model/layer_loader.h"
#include "engine/parallel/cut_sources.h"

namespace heddle::engine {
namespace {

using kernels::WeightSource;

// One of the experts' two layers; see ExpertSources.
struct ExpertLayer {
  const std::string& fused;
  TensorLoader::Names names;
  const std::string& fused_bias;
  TensorLoader::Names bias_names;
};

// Keeps `cut` of each of its matrices, which have the same shape.
absl::Status Stack(TensorLoader& loader, const ExpertLayer& layer, int32_t n_experts,
                   const Cut& cut, std::unique_ptr<kernels::PackedStack>* matrices,
                   DeviceVector* biases) {
  ExpertSources experts(loader.checkpoint(), loader.names().expert_layout, n_experts);
  HEDDLE_RETURN_IF_ERROR(experts.Add(layer.fused, layer.names));
  HEDDLE_RETURN_IF_ERROR(loader.Prepare(experts.tensors()));
  Cut of_stack = cut;
  if (cut.rows.has_value()) of_stack.rows->clear();
  int64_t begin = 0;
  for (const WeightSource& matrix : experts.sources()) {
    if (cut.rows.has_value()) {
      const Range own = cut.rows->front();
      of_stack.rows->push_back({begin + own.first, own.count});
    }
    begin += matrix.rows;
  }
  const CutSources parts(experts.sources(), of_stack);
  const KeptSources kept(loader.policy(), WeightRole::kMatrix, parts.sources());
  HEDDLE_ASSIGN_OR_RETURN(*matrices, loader.device().PackStack(kept.sources(), n_experts));
  loader.Release(experts.tensors());
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<float> values,
                          experts.Biases(layer.fused_bias, layer.bias_names));
  HEDDLE_ASSIGN_OR_RETURN(*biases, loader.Upload(CutValues(values, of_stack)));
  return absl::OkStatus();
}

absl::Status NormsApart(TensorLoader& loader, const LayerNames& names, MoeWeights* moe) {
  HEDDLE_ASSIGN_OR_RETURN(std::vector<float> router, loader.Values({&names.router_norm}));
  const float factor = 1.0f / std::sqrt(static_cast<float>(router.size()));
  for (float& weight : router) weight *= factor;
  HEDDLE_ASSIGN_OR_RETURN(moe->router_norm, loader.Upload(router));
  HEDDLE_ASSIGN_OR_RETURN(moe->norm, loader.Vector({&names.expert_norm}));
  HEDDLE_ASSIGN_OR_RETURN(moe->post_norm, loader.Vector({&names.expert_post_norm}));
  HEDDLE_ASSIGN_OR_RETURN(moe->mlp_norm, loader.Vector({&names.mlp_own_norm}));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<MoeWeights> LoadExperts(TensorLoader& loader, const LayerNames& names,
                                       const MoeSpec& spec, Range inner) {
  MoeWeights moe;
  HEDDLE_ASSIGN_OR_RETURN(
      moe.router, loader.Linear({&names.router}, {&names.router_bias}, {}, WeightRole::kExact));
  HEDDLE_ASSIGN_OR_RETURN(moe.choice_bias, loader.Vector({&names.choice_bias}));
  HEDDLE_ASSIGN_OR_RETURN(moe.expert_scale, loader.Vector({&names.expert_scale}));
  if (spec.apart) HEDDLE_RETURN_IF_ERROR(NormsApart(loader, names, &moe));
  const ExpertLayer up = {names.expert_gate_up,
                          {&names.expert_gate, &names.expert_up},
                          names.expert_gate_up_bias,
                          {&names.expert_gate_bias, &names.expert_up_bias}};
  HEDDLE_RETURN_IF_ERROR(
      Stack(loader, up, spec.n_experts, CutRows({inner}), &moe.up, &moe.up_bias));
  // One rank adds the bias of the layer whose results are summed over ranks: the first with a
  // share.
  const std::string none;
  const std::string& bias = inner.first == 0 ? names.expert_down_bias : none;
  const ExpertLayer down = {"", {&names.expert_down}, "", {&bias}};
  HEDDLE_RETURN_IF_ERROR(
      Stack(loader, down, spec.n_experts, CutColumns(inner), &moe.down, &moe.down_bias));
  return moe;
}

}  // namespace heddle::engine
