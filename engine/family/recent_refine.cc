#include "engine/family/recent_refine.h"

#include <algorithm>
#include <cmath>

#include "base/message.h"
#include "base/status.h"
#include "engine/family/describe.h"

namespace heddle::engine {
namespace {

// Scores grow with the logarithm of the position from this length on, for which the decoder has no
// op. So the model is served up to the length where nothing changes, as with LongRoPE.
void EndBeforeScaling(int32_t length, ModelSpec* spec) {
  spec->max_context = std::min(spec->max_context, length);
}

// Layers that see everything have no RoPE, if others have a window.
void DropRopeOfFullLayers(ModelSpec* spec) {
  const bool any = std::any_of(spec->layers.begin(), spec->layers.end(),
                               [](const LayerSpec& layer) { return layer.attention.window > 0; });
  for (LayerSpec& layer : spec->layers) {
    if (any && layer.attention.window == 0) layer.attention.rope = RopeSpec{};
  }
}

// Both blocks read the stream through one norm.
void MakeParallel(ModelSpec* spec, NameMap* names) {
  for (LayerSpec& layer : spec->layers) layer.parallel_residual = true;
  names->layer.mlp_norm = names->layer.attn_norm;
  names->layer.mlp_norm_bias = names->layer.attn_norm_bias;
}

void ScaleEmbeddings(ModelSpec* spec) {
  spec->embedding_scale = std::sqrt(static_cast<float>(spec->hidden));
}

// Replaces the MLP of all layers from `first` on by experts, beside an MLP of `shared` rows.
void AddExperts(const MoeSpec& moe, int64_t first, int32_t shared, ModelSpec* spec) {
  for (int64_t i = first; i < spec->n_layers(); ++i) {
    LayerSpec& layer = spec->layers[static_cast<size_t>(i)];
    layer.moe = moe;
    layer.moe.activation = layer.mlp.activation;
    layer.mlp.inter = shared;
  }
}

absl::Status ReadCounts(const JsonSource& config, std::string_view experts_key,
                        int32_t absent_experts, MoeSpec* moe) {
  constexpr std::string_view kTopK = "num_experts_per_tok";
  HEDDLE_ASSIGN_OR_RETURN(moe->n_experts,
                          config.DimOr(experts_key, kernels::kMaxExperts, absent_experts));
  HEDDLE_ASSIGN_OR_RETURN(moe->rule.top_k, config.DimOr(kTopK, kernels::kMaxExperts, 8));
  return CheckTopK(config, kTopK, *moe);
}

}  // namespace

absl::Status RefineGemma1(const JsonSource& config, ModelSpec* spec, NameMap*) {
  constexpr std::string_view kBidirectional = "use_bidirectional_attention";
  HEDDLE_ASSIGN_OR_RETURN(bool bidirectional, config.BoolOr(kBidirectional, false));
  if (bidirectional) return config.Unsupported(kBidirectional, "true", "expected false");
  // The first releases say "gelu" and mean its approximation.
  for (LayerSpec& layer : spec->layers) {
    if (layer.mlp.activation == Activation::kGelu) layer.mlp.activation = Activation::kGeluTanh;
  }
  ScaleEmbeddings(spec);
  return absl::OkStatus();
}

absl::Status RefineGgufGemma1(const GgufSource&, const TensorFinder&, ModelSpec* spec, NameMap*) {
  ScaleEmbeddings(spec);
  return absl::OkStatus();
}

absl::Status RefineCohere(const JsonSource& config, ModelSpec* spec, NameMap* names) {
  HEDDLE_ASSIGN_OR_RETURN(bool qk_norm, config.BoolOr("use_qk_norm", false));
  if (qk_norm) return config.Unsupported("use_qk_norm", "true", "expected false");
  HEDDLE_ASSIGN_OR_RETURN(double scale, config.PositiveOr("logit_scale", kMaxFactor, 0.0625));
  spec->logit_scale = static_cast<float>(scale);
  MakeParallel(spec, names);
  return absl::OkStatus();
}

absl::Status RefineCohere2(const JsonSource& config, ModelSpec* spec, NameMap* names) {
  DropRopeOfFullLayers(spec);
  return RefineCohere(config, spec, names);
}

absl::Status RefineGgufCohere(const GgufSource& source, const TensorFinder& find, ModelSpec* spec,
                              NameMap* names) {
  if (find("blk.0.attn_q_norm.weight") != nullptr) {
    return absl::UnimplementedError(
        base::StrCat(source.file(), ": queries and keys have layer norms, which is not supported"));
  }
  HEDDLE_ASSIGN_OR_RETURN(double scale, source.Positive("logit_scale", kMaxFactor));
  spec->logit_scale = static_cast<float>(scale);
  names->final_norm_bias.clear();
  names->layer.attn_norm_bias.clear();
  MakeParallel(spec, names);
  return absl::OkStatus();
}

absl::Status RefineGgufCohere2(const GgufSource& source, const TensorFinder& find, ModelSpec* spec,
                               NameMap* names) {
  DropRopeOfFullLayers(spec);
  return RefineGgufCohere(source, find, spec, names);
}

absl::Status RefineExaone4(const JsonSource&, ModelSpec* spec, NameMap*) {
  DropRopeOfFullLayers(spec);
  return absl::OkStatus();
}

absl::Status RefineGgufExaone4(const GgufSource&, const TensorFinder&, ModelSpec* spec, NameMap*) {
  DropRopeOfFullLayers(spec);
  return absl::OkStatus();
}

absl::Status RefineOlmoe(const JsonSource& config, ModelSpec* spec, NameMap*) {
  if (config.Has("clip_qkv")) {
    return config.Unsupported("clip_qkv", "set", "expected null");
  }
  MoeSpec moe;
  HEDDLE_RETURN_IF_ERROR(ReadCounts(
      config, config.Has("num_experts") ? "num_experts" : "num_local_experts", 64, &moe));
  moe.inter = spec->layers.front().mlp.inter;
  HEDDLE_ASSIGN_OR_RETURN(moe.rule.renormalise, config.BoolOr("norm_topk_prob", false));
  AddExperts(moe, 0, /*shared=*/0, spec);
  return absl::OkStatus();
}

absl::Status RefineGgufOlmoe(const GgufSource& source, const TensorFinder&, ModelSpec*, NameMap*) {
  constexpr std::string_view kClamp = "attention.clamp_kqv";
  if (!source.Has(kClamp)) return absl::OkStatus();
  HEDDLE_ASSIGN_OR_RETURN(double clamp, source.Float(kClamp));
  if (clamp == 0.0) return absl::OkStatus();
  return source.Unsupported(kClamp, base::StrCat(clamp), "expected none");
}

absl::Status RefineGlm4Moe(const JsonSource& config, ModelSpec* spec, NameMap*) {
  HEDDLE_ASSIGN_OR_RETURN(bool qk_norm, config.BoolOr("use_qk_norm", false));
  if (!qk_norm) {
    for (LayerSpec& layer : spec->layers) layer.attention.qk_norm = QkNorm::kNone;
  }
  MoeSpec moe;
  HEDDLE_RETURN_IF_ERROR(
      ReadCounts(config, config.Has("n_routed_experts") ? "n_routed_experts" : "num_local_experts",
                 128, &moe));
  HEDDLE_ASSIGN_OR_RETURN(moe.inter, config.DimOr("moe_intermediate_size", kMaxInter, 1408));
  RouteRule& rule = moe.rule;
  rule.score = RouteScore::kSigmoid;
  rule.group_best = 2;
  moe.choice_bias = true;
  HEDDLE_ASSIGN_OR_RETURN(double scale,
                          config.PositiveOr("routed_scaling_factor", kMaxFactor, 1.0));
  rule.scale = static_cast<float>(scale);
  HEDDLE_ASSIGN_OR_RETURN(rule.renormalise, config.BoolOr("norm_topk_prob", true));
  HEDDLE_ASSIGN_OR_RETURN(rule.n_groups, config.DimOr("n_group", kernels::kMaxExpertGroups, 1));
  HEDDLE_ASSIGN_OR_RETURN(rule.top_groups,
                          config.DimOr("topk_group", kernels::kMaxExpertGroups, 1));
  HEDDLE_RETURN_IF_ERROR(CheckGroups(config, "n_group", "topk_group", moe));
  HEDDLE_ASSIGN_OR_RETURN(int32_t shared,
                          config.DimOr("n_shared_experts", kMaxInter / moe.inter, 1));
  int64_t first = 1;
  if (config.Has("first_k_dense_replace")) {
    HEDDLE_ASSIGN_OR_RETURN(first, config.Int("first_k_dense_replace"));
    if (first < 0) {
      return config.Error("first_k_dense_replace", base::StrCat(first), "a number of layers");
    }
  }
  AddExperts(moe, first, shared * moe.inter, spec);
  return absl::OkStatus();
}

absl::Status RefineGgufPostAttentionNorm(const GgufSource&, const TensorFinder&, ModelSpec*,
                                         NameMap* names) {
  names->layer.mlp_norm = "blk.{}.post_attention_norm.weight";
  return absl::OkStatus();
}

// Files of the variants that read images have q and k in the order of halves as well.
absl::Status RefineGgufGlm4Moe(const GgufSource& source, const TensorFinder& find, ModelSpec* spec,
                               NameMap* names) {
  if (find("blk.0.attn_q_norm.weight") == nullptr) {
    for (LayerSpec& layer : spec->layers) layer.attention.qk_norm = QkNorm::kNone;
  }
  return RefineGgufPostAttentionNorm(source, find, spec, names);
}

absl::Status RefineMiniMaxM2(const JsonSource& config, ModelSpec* spec, NameMap*) {
  MoeSpec moe;
  HEDDLE_RETURN_IF_ERROR(ReadCounts(config, "num_local_experts", 256, &moe));
  moe.inter = spec->layers.front().mlp.inter;
  moe.rule.score = RouteScore::kSigmoid;
  moe.rule.renormalise = true;
  moe.choice_bias = true;
  AddExperts(moe, 0, /*shared=*/0, spec);
  // The published files give the rotated part of a head by its size.
  const int32_t head_dim = spec->layers.front().attention.head_dim;
  HEDDLE_ASSIGN_OR_RETURN(
      const int32_t rotary_dim,
      config.DimOr("rotary_dim", head_dim, spec->layers.front().attention.rope.rotary_dim));
  if (rotary_dim % 2 != 0) {
    return config.Error("rotary_dim", base::StrCat(rotary_dim), "an even number");
  }
  for (LayerSpec& layer : spec->layers) layer.attention.rope.rotary_dim = rotary_dim;
  return absl::OkStatus();
}

absl::Status RefineMinistral3(const JsonSource& config, ModelSpec* spec, NameMap*) {
  double beta = 0.1;  // of Ministral3Config's own parameters
  for (std::string_view key : {"rope_parameters", "rope_scaling"}) {
    HEDDLE_ASSIGN_OR_RETURN(std::optional<JsonSource> rope, config.Object(key));
    if (!rope.has_value()) continue;
    beta = 0.0;
    if (rope->Has("llama_4_scaling_beta")) {
      HEDDLE_ASSIGN_OR_RETURN(beta, rope->Float("llama_4_scaling_beta"));
    }
  }
  const int32_t length = spec->layers.front().attention.rope.original_max_position;
  if (beta != 0.0) EndBeforeScaling(length, spec);
  return absl::OkStatus();
}

}  // namespace heddle::engine
