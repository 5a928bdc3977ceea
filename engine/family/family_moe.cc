// Reads config.json of the families with mixtures of experts; see family_refine.h.
#include <algorithm>
#include <vector>

#include "base/message.h"
#include "base/status.h"
#include "engine/family/describe.h"
#include "engine/family/family_refine.h"
#include "nlohmann/json.hpp"

namespace heddle::engine {
namespace {

constexpr std::string_view kTopK = "num_experts_per_tok";

// Reads the numbers of experts and of experts per row.
absl::Status ReadCounts(const JsonSource& config, std::string_view experts_key,
                        int32_t absent_experts, int32_t absent_top_k, MoeSpec* moe) {
  HEDDLE_ASSIGN_OR_RETURN(moe->n_experts,
                          config.DimOr(experts_key, kernels::kMaxExperts, absent_experts));
  HEDDLE_ASSIGN_OR_RETURN(moe->rule.top_k, config.DimOr(kTopK, kernels::kMaxExperts, absent_top_k));
  return CheckTopK(config, kTopK, *moe);
}

// The layers that keep a dense MLP: those listed, and all but each decoder_sparse_step-th.
absl::StatusOr<std::vector<bool>> QwenDenseLayers(const JsonSource& config, int32_t n_layers) {
  constexpr std::string_view kList = "mlp_only_layers";
  HEDDLE_ASSIGN_OR_RETURN(int32_t step, config.DimOr("decoder_sparse_step", kMaxLayers, 1));
  std::vector<bool> dense(static_cast<size_t>(n_layers), false);
  for (int32_t i = 0; i < n_layers; ++i) dense[static_cast<size_t>(i)] = (i + 1) % step != 0;
  const nlohmann::json* list = config.Find(kList);
  if (list == nullptr) return dense;
  if (!list->is_array()) {
    return config.Error(kList, JsonSource::Show(*list), "a list of indices of layers");
  }
  for (const nlohmann::json& item : *list) {
    if (!item.is_number_unsigned()) {
      return config.Error(kList, JsonSource::Show(item), "indices of layers");
    }
    const auto index = item.get<uint64_t>();
    if (index < dense.size()) dense[index] = true;  // indices beyond the model have no effect
  }
  return dense;
}

absl::Status RefineQwenMoe(const JsonSource& config, const MoeSpec& absent, int32_t shared_inter,
                           ModelSpec* spec) {
  HEDDLE_ASSIGN_OR_RETURN(bool window, config.BoolOr("use_sliding_window", false));
  if (window) return config.Unsupported("use_sliding_window", "true", "expected false");
  MoeSpec moe = absent;
  // transformers 5 writes the second name.
  const char* experts = config.Has("num_experts") ? "num_experts" : "num_local_experts";
  HEDDLE_RETURN_IF_ERROR(ReadCounts(config, experts, absent.n_experts, absent.rule.top_k, &moe));
  HEDDLE_ASSIGN_OR_RETURN(moe.inter,
                          config.DimOr("moe_intermediate_size", kMaxInter, absent.inter));
  HEDDLE_ASSIGN_OR_RETURN(moe.rule.renormalise,
                          config.BoolOr("norm_topk_prob", absent.rule.renormalise));
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<bool> dense, QwenDenseLayers(config, spec->n_layers()));
  for (size_t i = 0; i < spec->layers.size(); ++i) {
    LayerSpec& layer = spec->layers[i];
    if (dense[i]) continue;
    layer.moe = moe;
    layer.moe.activation = layer.mlp.activation;
    layer.mlp.inter = shared_inter;
    layer.mlp.row_gate = shared_inter > 0;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckTopK(const ConfigSource& source, std::string_view key, const MoeSpec& moe) {
  if (moe.rule.top_k <= moe.n_experts) return absl::OkStatus();
  return source.Error(key, base::StrCat(moe.rule.top_k),
                      base::StrCat("at most the number of experts (", moe.n_experts, ")"));
}

absl::Status RefineMixtral(const JsonSource& config, ModelSpec* spec, NameMap*) {
  MoeSpec moe;
  HEDDLE_RETURN_IF_ERROR(ReadCounts(config, "num_local_experts", 8, 2, &moe));
  moe.rule.renormalise = true;
  for (LayerSpec& layer : spec->layers) {
    layer.moe = moe;
    layer.moe.inter = layer.mlp.inter;
    layer.moe.activation = layer.mlp.activation;
    layer.mlp.inter = 0;
  }
  return absl::OkStatus();
}

// Properties of every gpt-oss model, whatever its file says.
void ApplyGptOss(ModelSpec* spec) {
  for (LayerSpec& layer : spec->layers) {
    layer.attention.sinks = true;
    layer.mlp.inter = 0;
    layer.moe.activation = Activation::kClampedSwiglu;
    layer.moe.bias = layer.moe.router_bias = true;
    layer.moe.rule.renormalise = true;
  }
}

absl::Status RefineGptOss(const JsonSource& config, ModelSpec* spec, NameMap* names) {
  for (auto [key, value] : {std::pair("swiglu_limit", 7.0), std::pair("swiglu_alpha", 1.702)}) {
    HEDDLE_ASSIGN_OR_RETURN(double found, config.PositiveOr(key, kMaxFactor, value));
    if (found != value) {
      return config.Unsupported(key, base::StrCat(found), base::StrCat("expected ", value));
    }
  }
  MoeSpec moe;
  HEDDLE_RETURN_IF_ERROR(ReadCounts(config, "num_local_experts", 128, 4, &moe));
  moe.inter = spec->layers.front().mlp.inter;
  constexpr int32_t kBlock = 32;
  const bool blocks = names->expert_layout == ExpertLayout::kMxfp4;
  if (blocks && (spec->hidden % kBlock != 0 || moe.inter % kBlock != 0)) {
    return config.Error(moe.inter % kBlock != 0 ? "intermediate_size" : "hidden_size",
                        base::StrCat(moe.inter % kBlock != 0 ? moe.inter : spec->hidden),
                        "a multiple of 32, the size of an MXFP4 block");
  }
  for (LayerSpec& layer : spec->layers) layer.moe = moe;
  ApplyGptOss(spec);
  return absl::OkStatus();
}

absl::Status RefineQwen2Moe(const JsonSource& config, ModelSpec* spec, NameMap*) {
  HEDDLE_ASSIGN_OR_RETURN(int32_t shared,
                          config.DimOr("shared_expert_intermediate_size", kMaxInter, 5632));
  const MoeSpec absent{.n_experts = 60, .inter = 1408, .rule = {.top_k = 4}};
  return RefineQwenMoe(config, absent, shared, spec);
}

absl::Status RefineQwen3Moe(const JsonSource& config, ModelSpec* spec, NameMap*) {
  const MoeSpec absent{.n_experts = 128, .inter = 768, .rule = {.top_k = 8}};
  return RefineQwenMoe(config, absent, /*shared_inter=*/0, spec);
}

absl::Status RefineQwen3NextMoe(const JsonSource& config, ModelSpec* spec, NameMap*) {
  HEDDLE_ASSIGN_OR_RETURN(int32_t shared,
                          config.DimOr("shared_expert_intermediate_size", kMaxInter, 512));
  const MoeSpec absent{.n_experts = 512, .inter = 512, .rule = {.top_k = 10, .renormalise = true}};
  return RefineQwenMoe(config, absent, shared, spec);
}

absl::Status RefineQwen35Experts(const JsonSource& config, ModelSpec* spec, NameMap*) {
  HEDDLE_ASSIGN_OR_RETURN(int32_t shared,
                          config.DimOr("shared_expert_intermediate_size", kMaxInter, 512));
  const MoeSpec absent{.n_experts = 256, .inter = 512, .rule = {.top_k = 8, .renormalise = true}};
  HEDDLE_RETURN_IF_ERROR(RefineQwenMoe(config, absent, shared, spec));
  // The class always does.
  for (LayerSpec& layer : spec->layers) layer.moe.rule.renormalise = true;
  return absl::OkStatus();
}

}  // namespace heddle::engine
