#include "engine/family/newer_refine.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/message.h"
#include "base/status.h"
#include "engine/family/describe.h"
#include "engine/family/family_refine.h"
#include "engine/family/gguf_refine.h"
#include "engine/family/recent_refine.h"
#include "nlohmann/json.hpp"

namespace heddle::engine {
namespace {

constexpr std::string_view kMlpTypes = "mlp_layer_types";

// Without a list, the first of four layers sees everything, and so on.
void LetFirstOfFourSee(const JsonSource& config, ModelSpec* spec) {
  if (config.Has("layer_types")) return;
  int32_t window = 0;
  for (const LayerSpec& layer : spec->layers) window = std::max(window, layer.attention.window);
  for (size_t i = 0; i < spec->layers.size(); ++i) {
    spec->layers[i].attention.window = i % 4 == 0 ? 0 : window;
  }
}

// Whether each layer has experts: as a list says, or all from layer `first` on.
absl::StatusOr<std::vector<bool>> LayersWithExperts(const JsonSource& config, int64_t first,
                                                    int32_t n_layers) {
  std::vector<bool> sparse;
  const nlohmann::json* types = config.Find(kMlpTypes);
  if (types == nullptr) {
    for (int32_t i = 0; i < n_layers; ++i) sparse.push_back(i >= first);
    return sparse;
  }
  if (!types->is_array() || types->size() != static_cast<size_t>(n_layers)) {
    return config.Error(kMlpTypes, JsonSource::Show(*types),
                        base::StrCat("a list of ", n_layers, " strings, one per layer"));
  }
  for (const nlohmann::json& type : *types) {
    sparse.push_back(type == "sparse");
    if (!sparse.back() && type != "dense") {
      return config.Unsupported(kMlpTypes, JsonSource::Show(type),
                                "supported are \"dense\" and \"sparse\"");
    }
  }
  return sparse;
}

// Keys and defaults of experts that are chosen by sigmoid scores and a bias.
struct SigmoidKeys {
  std::string_view experts = "n_routed_experts";
  std::string_view shared = "n_shared_experts";
  std::string_view scale = "routed_scaling_factor";
  int32_t absent_experts = 128;
  int32_t absent_inter = 1408;
  double absent_scale = 1.0;
  int64_t first = 0;  // of the layers that have experts if no list says which do
};

absl::StatusOr<MoeSpec> ReadExperts(const JsonSource& config, const SigmoidKeys& keys) {
  constexpr std::string_view kTopK = "num_experts_per_tok";
  const std::string_view experts = config.Has(keys.experts) ? keys.experts : "num_local_experts";
  MoeSpec moe;
  HEDDLE_ASSIGN_OR_RETURN(moe.n_experts,
                          config.DimOr(experts, kernels::kMaxExperts, keys.absent_experts));
  HEDDLE_ASSIGN_OR_RETURN(moe.rule.top_k, config.DimOr(kTopK, kernels::kMaxExperts, 8));
  HEDDLE_RETURN_IF_ERROR(CheckTopK(config, kTopK, moe));
  HEDDLE_ASSIGN_OR_RETURN(moe.inter,
                          config.DimOr("moe_intermediate_size", kMaxInter, keys.absent_inter));
  HEDDLE_ASSIGN_OR_RETURN(const double scale,
                          config.PositiveOr(keys.scale, kMaxFactor, keys.absent_scale));
  moe.rule.scale = static_cast<float>(scale);
  moe.rule.score = RouteScore::kSigmoid;
  moe.choice_bias = true;
  return moe;
}

// The same with groups of experts, as DeepSeek-V3 has them.
absl::StatusOr<MoeSpec> ReadGroupedExperts(const JsonSource& config, const SigmoidKeys& keys) {
  HEDDLE_ASSIGN_OR_RETURN(MoeSpec moe, ReadExperts(config, keys));
  RouteRule& rule = moe.rule;
  rule.group_best = 2;
  HEDDLE_ASSIGN_OR_RETURN(rule.renormalise, config.BoolOr("norm_topk_prob", true));
  HEDDLE_ASSIGN_OR_RETURN(rule.n_groups, config.DimOr("n_group", kernels::kMaxExpertGroups, 1));
  HEDDLE_ASSIGN_OR_RETURN(rule.top_groups,
                          config.DimOr("topk_group", kernels::kMaxExpertGroups, 1));
  HEDDLE_RETURN_IF_ERROR(CheckGroups(config, "n_group", "topk_group", moe));
  return moe;
}

// Gives the layers that have them their experts, and an MLP that all rows share.
absl::Status AddExperts(const JsonSource& config, const SigmoidKeys& keys, const MoeSpec& moe,
                        ModelSpec* spec) {
  HEDDLE_ASSIGN_OR_RETURN(const int64_t shared,
                          CountOr(config, keys.shared, kMaxInter / moe.inter, 1));
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<bool> sparse,
                          LayersWithExperts(config, keys.first, spec->n_layers()));
  for (size_t i = 0; i < spec->layers.size(); ++i) {
    if (!sparse[i]) continue;
    LayerSpec& layer = spec->layers[i];
    layer.moe = moe;
    layer.moe.activation = layer.mlp.activation;
    layer.mlp.inter = static_cast<int32_t>(shared) * moe.inter;
  }
  return absl::OkStatus();
}

absl::Status Expect(const JsonSource& config, std::initializer_list<std::string_view> keys,
                    bool expected) {
  for (const std::string_view key : keys) {
    HEDDLE_ASSIGN_OR_RETURN(const bool value, config.BoolOr(key, expected));
    if (value != expected) {
      return config.Unsupported(key, value ? "true" : "false",
                                expected ? "expected true" : "expected false");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RefineIQuestCoder(const JsonSource& config, ModelSpec*, NameMap*) {
  if (config.Has("clip_qkv")) return config.Unsupported("clip_qkv", "set", "expected null");
  return Expect(config, {"use_sliding_window"}, false);
}

absl::Status RefineCwm(const JsonSource& config, ModelSpec* spec, NameMap*) {
  LetFirstOfFourSee(config, spec);
  return absl::OkStatus();
}

// Granite's scales of embedding, scores and residual; logits are multiplied by their scale instead
// of divided. A norm behind a block does not see that the stream is divided by the residual's scale
// (ApplyGraniteScales), so that those do not go together.
absl::Status RefineHyperClovaX(const JsonSource& config, ModelSpec* spec, NameMap* names) {
  HEDDLE_RETURN_IF_ERROR(RefineGranite(config, spec, names));
  HEDDLE_ASSIGN_OR_RETURN(const double logits,
                          config.PositiveOr("logits_scaling", kMaxFactor, 1.0));
  spec->logit_scale = static_cast<float>(logits);
  HEDDLE_ASSIGN_OR_RETURN(const bool post_norm, config.BoolOr("use_post_norm", true));
  HEDDLE_ASSIGN_OR_RETURN(const double residual,
                          config.PositiveOr("residual_multiplier", kMaxFactor, 1.0));
  if (post_norm && residual != 1.0) {
    return config.Unsupported("residual_multiplier", base::StrCat(residual),
                              "expected 1 with \"use_post_norm\"");
  }
  const bool has_scale = config.Has("attention_multiplier");
  for (LayerSpec& layer : spec->layers) {
    layer.post_norm = post_norm;
    if (has_scale) continue;
    layer.attention.scale = 1.0f / std::sqrt(static_cast<float>(layer.attention.head_dim));
  }
  return absl::OkStatus();
}

// Each layer may have a base of RoPE of its own, zero for none, and heads have sinks.
absl::Status RefineGraniteSwa(const JsonSource& config, ModelSpec* spec, NameMap* names) {
  constexpr std::string_view kThetas = "layer_rope_theta";
  LetFirstOfFourSee(config, spec);
  HEDDLE_RETURN_IF_ERROR(RefineGranite(config, spec, names));
  for (LayerSpec& layer : spec->layers) layer.attention.sinks = true;
  const nlohmann::json* thetas = config.Find(kThetas);
  if (thetas == nullptr) return absl::OkStatus();
  if (!thetas->is_array() || thetas->size() != spec->layers.size()) {
    return config.Error(kThetas, JsonSource::Show(*thetas),
                        base::StrCat("a list of ", spec->n_layers(), " numbers, one per layer"));
  }
  for (size_t i = 0; i < spec->layers.size(); ++i) {
    const nlohmann::json& item = (*thetas)[i];
    const double theta = item.is_number() ? item.get<double>() : -1.0;
    if (theta != 0.0 && !(theta > 1.0 && theta <= kMaxTheta)) {
      return config.Error(kThetas, JsonSource::Show(item), "0 or a number above 1");
    }
    RopeSpec& rope = spec->layers[i].attention.rope;
    if (theta == 0.0) rope = RopeSpec{};
    if (theta != 0.0) rope.theta = static_cast<float>(theta);
  }
  return absl::OkStatus();
}

// The converter keeps the folder's name of the experts' bias, which lacks GGUF's ending.
absl::Status RefineGgufHyV3(const GgufSource&, const TensorFinder& find, ModelSpec* spec,
                            NameMap* names) {
  for (int32_t i = 0; i < spec->n_layers(); ++i) {
    if (find(base::StrCat("blk.", i, ".exp_probs_b")) == nullptr) continue;
    names->layer.choice_bias = "blk.{}.exp_probs_b";
    spec->layers[static_cast<size_t>(i)].moe.choice_bias = true;
  }
  return absl::OkStatus();
}

// The layers that rotate are those that an array names, or all. Converters leave out the bases of
// single layers' RoPE.
absl::Status RefineGgufGraniteSwa(const GgufSource& source, const TensorFinder& find,
                                  ModelSpec* spec, NameMap* names) {
  constexpr std::string_view kRotates = "attention.rope_pattern";
  HEDDLE_RETURN_IF_ERROR(RefineGgufGranite(source, find, spec, names));
  if (find("blk.0.ffn_gate_inp.weight") != nullptr) {
    return absl::UnimplementedError(
        base::StrCat(source.file(),
                     ": experts of granite_swa (tensor \"blk.0.ffn_gate_inp.weight\") are not "
                     "supported"));
  }
  for (LayerSpec& layer : spec->layers) layer.attention.sinks = true;
  if (!source.IsArray(kRotates)) return absl::OkStatus();
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<int64_t> rotates, source.Ints(kRotates));
  if (rotates.size() != spec->layers.size()) {
    return source.Error(kRotates, base::StrCat("an array of ", rotates.size()),
                        base::StrCat("one of ", spec->n_layers(), ", one per layer"));
  }
  for (size_t i = 0; i < rotates.size(); ++i) {
    if (rotates[i] == 0) spec->layers[i].attention.rope = RopeSpec{};
  }
  return absl::OkStatus();
}

namespace {

// MiniCPM's scales are Granite's under other names: the depth's is divided by the root of the
// number of layers, and logits are divided by hidden / dim_model_base.
void ApplyMiniCpm(double embedding, double residual, double logits, ModelSpec* spec) {
  ApplyGraniteScales({.embedding = embedding,
                      .residual = residual,
                      .attention = spec->layers.front().attention.scale,
                      .logits = logits},
                     spec);
}

}  // namespace

absl::Status RefineMiniCpm(const JsonSource& config, ModelSpec* spec, NameMap*) {
  if (config.Has("num_experts")) {
    return config.Unsupported("num_experts", "set", "models with experts are not supported");
  }
  HEDDLE_ASSIGN_OR_RETURN(const double embedding, config.PositiveOr("scale_emb", kMaxFactor, 1.0));
  HEDDLE_ASSIGN_OR_RETURN(const double depth, config.PositiveOr("scale_depth", kMaxFactor, 1.0));
  HEDDLE_ASSIGN_OR_RETURN(const double base, config.PositiveOr("dim_model_base", kMaxHidden, 1.0));
  static_cast<void>(config.Has("rope_scaling"));
  ApplyMiniCpm(embedding, depth / std::sqrt(static_cast<double>(spec->n_layers())),
               spec->hidden / base, spec);
  return absl::OkStatus();
}

// Files from before the scales had keys are of models with these.
absl::Status RefineGgufMiniCpm(const GgufSource& source, const TensorFinder&, ModelSpec* spec,
                               NameMap*) {
  constexpr double kEmbedding = 12.0, kDepth = 1.4, kModelBase = 256.0;
  const double absent_residual = kDepth / std::sqrt(static_cast<double>(spec->n_layers()));
  HEDDLE_ASSIGN_OR_RETURN(const double embedding,
                          source.PositiveOr("embedding_scale", kMaxFactor, kEmbedding));
  HEDDLE_ASSIGN_OR_RETURN(const double residual,
                          source.PositiveOr("residual_scale", kMaxFactor, absent_residual));
  HEDDLE_ASSIGN_OR_RETURN(const double logits,
                          source.PositiveOr("logit_scale", kMaxFactor, spec->hidden / kModelBase));
  ApplyMiniCpm(embedding, residual, logits, spec);
  return absl::OkStatus();
}

// All layers have experts.
absl::Status RefineSolarOpen(const JsonSource& config, ModelSpec* spec, NameMap*) {
  constexpr std::string_view kFirst = "first_k_dense_replace";
  HEDDLE_RETURN_IF_ERROR(Expect(config, {"use_qk_norm"}, false));
  HEDDLE_ASSIGN_OR_RETURN(const int64_t first, CountOr(config, kFirst, kMaxLayers, 0));
  if (first != 0) return config.Unsupported(kFirst, base::StrCat(first), "expected 0");
  const SigmoidKeys keys{.absent_inter = 1280};
  HEDDLE_ASSIGN_OR_RETURN(const MoeSpec moe, ReadGroupedExperts(config, keys));
  return AddExperts(config, keys, moe, spec);
}

absl::Status RefineExaoneMoe(const JsonSource& config, ModelSpec* spec, NameMap*) {
  DropRopeOfFullLayers(spec);
  HEDDLE_ASSIGN_OR_RETURN(const int64_t first,
                          CountOr(config, "first_k_dense_replace", kMaxLayers, 1));
  const SigmoidKeys keys{.experts = "num_experts",
                         .shared = "num_shared_experts",
                         .absent_experts = 64,
                         .absent_inter = 1024,
                         .absent_scale = 2.5,
                         .first = first};
  HEDDLE_ASSIGN_OR_RETURN(const MoeSpec moe, ReadGroupedExperts(config, keys));
  return AddExperts(config, keys, moe, spec);
}

absl::Status RefineGgufExaoneMoe(const GgufSource&, const TensorFinder&, ModelSpec* spec,
                                 NameMap*) {
  DropRopeOfFullLayers(spec);
  return absl::OkStatus();
}

absl::Status RefineHyV3(const JsonSource& config, ModelSpec* spec, NameMap*) {
  // Keys that the published files have, and that the class does not look at.
  HEDDLE_RETURN_IF_ERROR(Expect(
      config, {"qk_norm", "route_norm", "moe_router_use_sigmoid", "moe_router_enable_expert_bias"},
      true));
  for (const std::string_view key :
       {"enable_attention_fp32_softmax", "enable_lm_head_fp32", "enable_moe_fp32_combine",
        "expert_hidden_dim", "use_grouped_mm"}) {
    static_cast<void>(config.Has(key));
  }
  HEDDLE_ASSIGN_OR_RETURN(const int64_t first,
                          CountOr(config, "first_k_dense_replace", kMaxLayers, 1));
  const SigmoidKeys keys{.experts = "num_experts",
                         .shared = "num_shared_experts",
                         .scale = "router_scaling_factor",
                         .absent_experts = 192,
                         .absent_inter = 1536,
                         .absent_scale = 2.826,
                         .first = first};
  HEDDLE_ASSIGN_OR_RETURN(MoeSpec moe, ReadExperts(config, keys));
  moe.rule.renormalise = true;
  return AddExperts(config, keys, moe, spec);
}

// Qwen 3's experts in the layers that a list names, and windows where another one says so.
absl::Status RefineMellum(const JsonSource& config, ModelSpec* spec, NameMap* names) {
  HEDDLE_RETURN_IF_ERROR(RefineQwen3Moe(config, spec, names));
  HEDDLE_ASSIGN_OR_RETURN(const bool renormalises, config.BoolOr("norm_topk_prob", true));
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<bool> sparse,
                          LayersWithExperts(config, 0, spec->n_layers()));
  HEDDLE_ASSIGN_OR_RETURN(const int32_t inter, config.DimOr("intermediate_size", kMaxInter, 7168));
  for (const std::string_view key : {"mtp_layer_types", "mtp_mlp_layer_types"}) {
    static_cast<void>(config.Has(key));
  }
  const bool has_list = config.Has("layer_types");
  for (size_t i = 0; i < spec->layers.size(); ++i) {
    LayerSpec& layer = spec->layers[i];
    layer.moe.rule.renormalise = renormalises;
    if (!has_list) layer.attention.window = 0;
    if (sparse[i]) continue;
    layer.moe = MoeSpec{};
    layer.mlp.inter = inter;
  }
  return absl::OkStatus();
}

absl::Status RefineGgufMellum(const GgufSource& source, const TensorFinder&, ModelSpec* spec,
                              NameMap*) {
  if (source.Has("rope.freq_base_swa")) return absl::OkStatus();
  HEDDLE_ASSIGN_OR_RETURN(const double theta,
                          source.PositiveOr("rope.freq_base", kMaxTheta, 10000.0));
  for (LayerSpec& layer : spec->layers) {
    if (layer.attention.window > 0) layer.attention.rope.theta = static_cast<float>(theta);
  }
  return absl::OkStatus();
}

absl::Status RefineApertus(const JsonSource& config, ModelSpec* spec, NameMap*) {
  HEDDLE_RETURN_IF_ERROR(Expect(config, {"post_norm"}, false));
  HEDDLE_ASSIGN_OR_RETURN(const std::string activation, config.StringOr("hidden_act", "xielu"));
  if (activation != "xielu") {
    return config.Unsupported("hidden_act", base::Quote(activation), "supported is xielu");
  }
  static_cast<void>(config.Has("qk_norm"));
  for (LayerSpec& layer : spec->layers) {
    layer.mlp.activation = Activation::kNone;
    layer.mlp.xielu.is_here = true;
  }
  return absl::OkStatus();
}

absl::Status RefineStableLm(const JsonSource& config, ModelSpec* spec, NameMap* names) {
  HEDDLE_RETURN_IF_ERROR(Expect(config, {"qk_layernorm"}, false));
  HEDDLE_ASSIGN_OR_RETURN(const bool parallel, config.BoolOr("use_parallel_residual", false));
  if (parallel) MakeParallel(spec, names);
  return absl::OkStatus();
}

absl::Status RefineGgufStableLm(const GgufSource& source, const TensorFinder& find, ModelSpec* spec,
                                NameMap* names) {
  static_cast<void>(source.Has("use_parallel_residual"));
  if (find("blk.0.attn_q_norm.weight") != nullptr) {
    return absl::UnimplementedError(
        base::StrCat(source.file(), ": queries and keys have layer norms, which is not supported"));
  }
  if (find("blk.0.ffn_norm.weight") == nullptr) MakeParallel(spec, names);
  return absl::OkStatus();
}

}  // namespace heddle::engine
