#include "engine/family/family_refine.h"

#include <cmath>

#include "base/message.h"
#include "base/status.h"
#include "engine/family/describe.h"
#include "nlohmann/json.hpp"

namespace heddle::engine {
namespace {

// Reads a cap on logits; null means none.
absl::StatusOr<float> ReadSoftcap(const JsonSource& config, std::string_view key, double absent) {
  if (config.IsNull(key)) return 0.0f;
  HEDDLE_ASSIGN_OR_RETURN(double softcap, config.PositiveOr(key, kMaxFactor, absent));
  return static_cast<float>(softcap);
}

absl::Status RefineGemma(const JsonSource& config, double attention_softcap, double logit_softcap,
                         ModelSpec* spec) {
  HEDDLE_ASSIGN_OR_RETURN(double scalar,
                          config.PositiveOr("query_pre_attn_scalar", kMaxFactor, 256.0));
  HEDDLE_ASSIGN_OR_RETURN(float softcap,
                          ReadSoftcap(config, "attn_logit_softcapping", attention_softcap));
  HEDDLE_ASSIGN_OR_RETURN(spec->logit_softcap,
                          ReadSoftcap(config, "final_logit_softcapping", logit_softcap));
  for (LayerSpec& layer : spec->layers) {
    layer.attention.scale = static_cast<float>(1.0 / std::sqrt(scalar));
    layer.attention.softcap = softcap;
  }
  spec->embedding_scale = std::sqrt(static_cast<float>(spec->hidden));
  return absl::OkStatus();
}

// Falcon-7B has one norm before both blocks, Falcon-40B has two, and sequential models the usual.
absl::Status RefineFalconNorms(const JsonSource& config, bool grouped, ModelSpec* spec,
                               NameMap* names) {
  HEDDLE_ASSIGN_OR_RETURN(bool parallel, config.BoolOr("parallel_attn", true));
  if (grouped && !parallel) {
    return config.Unsupported("parallel_attn", "false",
                              "expected true, with \"new_decoder_architecture\"");
  }
  HEDDLE_ASSIGN_OR_RETURN(int32_t norms,
                          config.DimOr("num_ln_in_parallel_attn", 2, grouped ? 2 : 1));
  if (!parallel) return absl::OkStatus();
  for (LayerSpec& layer : spec->layers) layer.wiring = Wiring::kParallel;
  LayerNames& layer = names->layer;
  if (grouped && norms == 2) {
    layer.attn_norm = "h.{}.ln_attn.weight";
    layer.attn_norm_bias = "h.{}.ln_attn.bias";
    layer.mlp_norm = "h.{}.ln_mlp.weight";
    layer.mlp_norm_bias = "h.{}.ln_mlp.bias";
  } else {
    layer.mlp_norm = layer.attn_norm;
    layer.mlp_norm_bias = layer.attn_norm_bias;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RefineGpt2(const JsonSource& config, ModelSpec* spec, NameMap*) {
  HEDDLE_ASSIGN_OR_RETURN(bool cross, config.BoolOr("add_cross_attention", false));
  if (cross) return config.Unsupported("add_cross_attention", "true", "expected false");
  HEDDLE_ASSIGN_OR_RETURN(bool scale, config.BoolOr("scale_attn_weights", true));
  HEDDLE_ASSIGN_OR_RETURN(bool by_layer, config.BoolOr("scale_attn_by_inverse_layer_idx", false));
  for (int32_t i = 0; i < spec->n_layers(); ++i) {
    AttentionSpec& attention = spec->layers[static_cast<size_t>(i)].attention;
    if (!scale) attention.scale = 1.0f;
    if (by_layer) attention.scale /= static_cast<float>(i + 1);
  }
  return absl::OkStatus();
}

absl::Status RefuseBothWays(const JsonSource& config) {
  constexpr std::string_view kBidirectional = "use_bidirectional_attention";
  HEDDLE_ASSIGN_OR_RETURN(bool bidirectional, config.BoolOr(kBidirectional, false));
  if (bidirectional) return config.Unsupported(kBidirectional, "true", "expected false");
  return absl::OkStatus();
}

absl::Status RefineGemma2(const JsonSource& config, ModelSpec* spec, NameMap*) {
  HEDDLE_RETURN_IF_ERROR(RefuseBothWays(config));
  return RefineGemma(config, /*attention_softcap=*/50.0, /*logit_softcap=*/30.0, spec);
}

// A cap on its attention's logits may be in the file, and has no effect in transformers.
absl::Status RefineGemma3(const JsonSource& config, ModelSpec* spec, NameMap* names) {
  HEDDLE_RETURN_IF_ERROR(RefuseBothWays(config));
  return RefineGemma3BothWays(config, spec, names);
}

absl::Status RefineGemma3BothWays(const JsonSource& config, ModelSpec* spec, NameMap*) {
  HEDDLE_RETURN_IF_ERROR(
      RefineGemma(config, /*attention_softcap=*/0.0, /*logit_softcap=*/0.0, spec));
  for (LayerSpec& layer : spec->layers) layer.attention.softcap = 0.0f;
  return absl::OkStatus();
}

absl::Status RefineSmolLm3(const JsonSource& config, ModelSpec* spec, NameMap*) {
  HEDDLE_ASSIGN_OR_RETURN(bool window, config.BoolOr("use_sliding_window", false));
  if (window) return config.Unsupported("use_sliding_window", "true", "expected false");
  HEDDLE_ASSIGN_OR_RETURN(int32_t interval, config.DimOr("no_rope_layer_interval", kMaxLayers, 4));
  const nlohmann::json* list = config.Find("no_rope_layers");  // 1: the layer does have RoPE
  if (list != nullptr && (!list->is_array() || list->size() != spec->layers.size())) {
    return config.Error("no_rope_layers", JsonSource::Show(*list),
                        base::StrCat("a list of ", spec->n_layers(), " numbers, one per layer"));
  }
  for (int32_t i = 0; i < spec->n_layers(); ++i) {
    const size_t index = static_cast<size_t>(i);
    const bool rotates = list == nullptr ? (i + 1) % interval != 0 : (*list)[index] == 1;
    if (!rotates) spec->layers[index].attention.rope = RopeSpec{};
  }
  return absl::OkStatus();
}

void SharpenBeyond(double beta, int32_t length, ModelSpec* spec) {
  for (LayerSpec& layer : spec->layers) {
    layer.attention.sharpen = {.factor = static_cast<float>(beta), .length = length};
  }
}

// Granite multiplies what blocks add to the stream by r. A model whose stream is divided by r adds
// plainly and is otherwise the same: the embedding is divided by r, and an RMS norm gives the same
// result with eps / r^2.
void ApplyGraniteScales(const GraniteScales& scales, ModelSpec* spec) {
  spec->embedding_scale = static_cast<float>(scales.embedding / scales.residual);
  spec->norm_eps = static_cast<float>(spec->norm_eps / (scales.residual * scales.residual));
  spec->logit_scale = static_cast<float>(1.0 / scales.logits);
  for (LayerSpec& layer : spec->layers) {
    layer.attention.scale = static_cast<float>(scales.attention);
  }
}

absl::Status RefineGranite(const JsonSource& config, ModelSpec* spec, NameMap*) {
  GraniteScales scales;
  HEDDLE_ASSIGN_OR_RETURN(scales.embedding,
                          config.PositiveOr("embedding_multiplier", kMaxFactor, 1.0));
  HEDDLE_ASSIGN_OR_RETURN(scales.residual,
                          config.PositiveOr("residual_multiplier", kMaxFactor, 1.0));
  HEDDLE_ASSIGN_OR_RETURN(scales.attention,
                          config.PositiveOr("attention_multiplier", kMaxFactor, 1.0));
  HEDDLE_ASSIGN_OR_RETURN(scales.logits, config.PositiveOr("logits_scaling", kMaxFactor, 1.0));
  ApplyGraniteScales(scales, spec);
  return absl::OkStatus();
}

absl::Status RefineGptNeox(const JsonSource& config, ModelSpec* spec, NameMap*) {
  HEDDLE_ASSIGN_OR_RETURN(bool parallel, config.BoolOr("use_parallel_residual", true));
  for (LayerSpec& layer : spec->layers) {
    layer.wiring = parallel ? Wiring::kParallel : Wiring::kSequential;
  }
  return absl::OkStatus();
}

absl::Status RefineFalcon(const JsonSource& config, ModelSpec* spec, NameMap* names) {
  HEDDLE_ASSIGN_OR_RETURN(bool alibi, config.BoolOr("alibi", false));
  if (alibi) return config.Unsupported("alibi", "true", "expected false");
  HEDDLE_ASSIGN_OR_RETURN(bool grouped, config.BoolOr("new_decoder_architecture", false));
  HEDDLE_ASSIGN_OR_RETURN(bool multi_query, config.BoolOr("multi_query", true));
  const int32_t n_heads = spec->layers.front().attention.n_heads;
  int32_t n_kv_heads = multi_query ? 1 : n_heads;
  if (grouped) {
    HEDDLE_ASSIGN_OR_RETURN(n_kv_heads, config.DimOr("num_kv_heads", n_heads, n_heads));
  }
  if (n_heads % n_kv_heads != 0) {
    return config.Error("num_kv_heads", base::StrCat(n_kv_heads),
                        base::StrCat("a divisor of \"num_attention_heads\" (", n_heads, ")"));
  }
  for (LayerSpec& layer : spec->layers) layer.attention.n_kv_heads = n_kv_heads;
  return RefineFalconNorms(config, grouped, spec, names);
}

}  // namespace heddle::engine
