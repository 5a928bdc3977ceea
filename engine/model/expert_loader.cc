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

// A rank's part of the experts.
struct ExpertShare {
  int32_t n_experts;  // of the model
  Range experts;
};

// Keeps `cut` of each of the matrices of a rank's experts, which have the same shape.
absl::Status Stack(TensorLoader& loader, const ExpertLayer& layer, const ExpertShare& share,
                   const Cut& cut, std::unique_ptr<kernels::PackedStack>* matrices,
                   DeviceVector* biases) {
  ExpertSources experts(loader.checkpoint(), loader.names().expert_layout, share.n_experts);
  HEDDLE_RETURN_IF_ERROR(experts.Add(layer.fused, layer.names));
  HEDDLE_RETURN_IF_ERROR(loader.Prepare(experts.tensors()));
  Cut of_stack = cut;
  of_stack.rows.emplace();
  const std::vector<WeightSource>& all = experts.sources();
  const auto each = static_cast<int64_t>(all.size()) / share.n_experts;
  int64_t begin = 0;
  for (size_t i = 0; i < all.size(); begin += all[i++].rows) {
    const int64_t expert = static_cast<int64_t>(i) / each;
    if (expert < share.experts.first || expert >= share.experts.end()) continue;
    const Range own = cut.rows.has_value() ? cut.rows->front() : Range{0, all[i].rows};
    of_stack.rows->push_back({begin + own.first, own.count});
  }
  const CutSources parts(all, of_stack);
  const KeptSources kept(loader.policy(), WeightRole::kMatrix, parts.sources());
  HEDDLE_ASSIGN_OR_RETURN(
      *matrices,
      loader.device().PackStack(kept.sources(), static_cast<int32_t>(share.experts.count)));
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
                                       const MoeSpec& spec, const LayerShare& share) {
  const Range inner = share.expert_inner;
  const ExpertShare experts = {spec.n_experts, share.experts};
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
  HEDDLE_RETURN_IF_ERROR(Stack(loader, up, experts, CutRows({inner}), &moe.up, &moe.up_bias));
  // One rank adds the bias of the layer whose results are summed over ranks: the first with a
  // share, or the one that has the expert.
  const std::string none;
  const std::string& bias = inner.first == 0 ? names.expert_down_bias : none;
  const ExpertLayer down = {"", {&names.expert_down}, "", {&bias}};
  HEDDLE_RETURN_IF_ERROR(
      Stack(loader, down, experts, CutColumns(inner), &moe.down, &moe.down_bias));
  return moe;
}

}  // namespace heddle::engine
