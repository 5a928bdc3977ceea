// Mixtures of experts in GGUF files.
#include <string>

#include "base/message.h"
#include "base/status.h"
#include "engine/family/describe.h"
#include "engine/family/family_names.h"

namespace heddle::engine {
namespace {

constexpr std::string_view kTopK = "expert_used_count";
constexpr std::string_view kGroups = "expert_group_count";
constexpr std::string_view kTopGroups = "expert_group_used_count";
constexpr std::string_view kScore = "expert_gating_func";
// The only family whose experts are chosen by softmax and a bias. Files that were converted of what
// transformers 5 saves say nothing of the scores of other families with a bias, which are sigmoids.
constexpr std::string_view kSoftmaxBesideBias = "ernie4_5_moe";

// The values are llama.cpp's llama_expert_gating_func_type. The third, a softmax over the chosen
// experts alone, equals one over all experts, renormalised.
absl::Status ReadScore(const GgufSource& source, int32_t absent, RouteRule* rule) {
  HEDDLE_ASSIGN_OR_RETURN(int32_t score, source.DimOr(kScore, 100, absent));
  if (score > 3) {
    return source.Unsupported(kScore, base::StrCat(score),
                              "supported are 1 (softmax), 2 (sigmoid) and 3 (softmax of chosen)");
  }
  rule->score = score == 2 ? RouteScore::kSigmoid : RouteScore::kSoftmax;
  rule->renormalise = rule->renormalise || score == 3;
  return absl::OkStatus();
}

absl::StatusOr<MoeSpec> ReadMoe(const GgufSource& source, const Family& family, bool has_bias,
                                const ModelSpec& spec) {
  const MlpSpec& mlp = spec.layers.front().mlp;
  MoeSpec moe;
  HEDDLE_ASSIGN_OR_RETURN(moe.n_experts, source.Dim("expert_count", kernels::kMaxExperts));
  HEDDLE_ASSIGN_OR_RETURN(moe.rule.top_k, source.Dim(kTopK, kernels::kMaxExperts));
  HEDDLE_RETURN_IF_ERROR(CheckTopK(source, kTopK, moe));
  HEDDLE_ASSIGN_OR_RETURN(moe.rule.renormalise,
                          source.BoolOr("expert_weights_norm", family.gguf_renormalise));
  const int32_t absent_score = has_bias && family.name != kSoftmaxBesideBias ? 2 : 1;
  HEDDLE_RETURN_IF_ERROR(ReadScore(source, absent_score, &moe.rule));
  moe.rule.group_best = moe.rule.score == RouteScore::kSigmoid ? 2 : 1;
  HEDDLE_ASSIGN_OR_RETURN(moe.rule.n_groups, source.DimOr(kGroups, kernels::kMaxExpertGroups, 1));
  HEDDLE_ASSIGN_OR_RETURN(moe.rule.top_groups,
                          source.DimOr(kTopGroups, kernels::kMaxExpertGroups, 1));
  HEDDLE_RETURN_IF_ERROR(CheckGroups(source, kGroups, kTopGroups, moe));
  HEDDLE_ASSIGN_OR_RETURN(double scale, source.PositiveOr("expert_weights_scale", kMaxFactor, 1.0));
  moe.rule.scale = static_cast<float>(scale);
  HEDDLE_ASSIGN_OR_RETURN(moe.inter,
                          source.DimOr("expert_feed_forward_length", kMaxInter, mlp.inter));
  moe.activation = mlp.activation;
  return moe;
}

// Rows of the shared expert; 0 if the layer has none.
absl::StatusOr<int32_t> SharedInter(const GgufSource& source, const CheckpointTensor* up) {
  if (up == nullptr) return 0;
  if (up->shape.size() == 2 && up->shape[0] <= kMaxInter) return static_cast<int32_t>(up->shape[0]);
  return absl::InvalidArgumentError(base::StrCat(source.file(), ": tensor ", base::Quote(up->name),
                                                 " is not a matrix of at most ", kMaxInter,
                                                 " rows"));
}

}  // namespace

absl::Status ReadGgufExperts(const GgufSource& source, const Family& family,
                             const TensorFinder& find, ModelSpec* spec) {
  if (!source.Has("expert_count")) return absl::OkStatus();
  // Dense models of families that also have experts say 0, or 1 (Jamba).
  HEDDLE_ASSIGN_OR_RETURN(const int64_t count, source.Int("expert_count"));
  bool routes = false;
  bool has_bias = false;
  for (int32_t i = 0; i < spec->n_layers(); ++i) {
    const LayerNames names = GgufNames().Layer(i);
    routes = routes || find(names.router) != nullptr;
    has_bias = has_bias || find(names.choice_bias) != nullptr;
  }
  if (count == 0 || (count == 1 && !routes)) return absl::OkStatus();
  HEDDLE_ASSIGN_OR_RETURN(const MoeSpec moe, ReadMoe(source, family, has_bias, *spec));
  for (int32_t i = 0; i < spec->n_layers(); ++i) {
    LayerSpec& layer = spec->layers[static_cast<size_t>(i)];
    const LayerNames names = GgufNames().Layer(i);
    if (find(names.router) == nullptr) continue;
    layer.moe = moe;
    layer.moe.router_bias = find(names.router_bias) != nullptr;
    layer.moe.choice_bias = find(names.choice_bias) != nullptr;
    HEDDLE_ASSIGN_OR_RETURN(layer.mlp.inter, SharedInter(source, find(names.shared_up)));
    layer.mlp.row_gate = find(names.row_gate) != nullptr;
  }
  return absl::OkStatus();
}

}  // namespace heddle::engine
