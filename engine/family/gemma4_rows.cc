#include "engine/family/gemma4_rows.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/message.h"
#include "base/status.h"
#include "engine/family/describe.h"
#include "engine/family/family_names.h"
#include "engine/family/layer_inputs.h"
#include "nlohmann/json.hpp"

namespace heddle::engine {
namespace {

using nlohmann::json;

constexpr std::string_view kGemma4Architectures[] = {"Gemma4ForCausalLM",
                                                     "Gemma4ForConditionalGeneration"};
constexpr std::string_view kGemma4Gguf[] = {"gemma4"};

// Gemma4TextConfig's, of layers that see everything.
constexpr int32_t kGemma4HeadDim = 512;
constexpr std::string_view kGemma4Rope =
    R"({"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0})";

const NameMap& Gemma4Names() {
  static const NameMap names = [] {
    NameMap gemma = GemmaNames();
    NameLayerInputs(&gemma);
    LayerNames& layer = gemma.layer;
    layer.stream_scale = "layers.{}.layer_scalar";
    layer.router = "layers.{}.router.proj.weight";
    layer.router_norm = "layers.{}.router.scale";
    layer.expert_scale = "layers.{}.router.per_expert_scale";
    layer.expert_gate_up = "layers.{}.experts.gate_up_proj";
    layer.expert_down = "layers.{}.experts.down_proj";
    layer.expert_norm = "layers.{}.pre_feedforward_layernorm_2.weight";
    layer.expert_post_norm = "layers.{}.post_feedforward_layernorm_2.weight";
    layer.mlp_own_norm = "layers.{}.post_feedforward_layernorm_1.weight";
    return gemma;
  }();
  return names;
}

// Sets what all layers have in common.
void ApplyToAll(ModelSpec* spec) {
  spec->embedding_scale = std::sqrt(static_cast<float>(spec->hidden));
  for (LayerSpec& layer : spec->layers) {
    layer.attention.scale = 1.0f;
    layer.attention.value_norm = true;
    layer.scales_stream = true;
  }
}

void ApplyExperts(MoeSpec moe, ModelSpec* spec) {
  moe.rule.renormalise = true;
  moe.expert_scale = moe.apart = true;
  for (LayerSpec& layer : spec->layers) {
    layer.moe = moe;
    layer.moe.activation = layer.mlp.activation;
  }
}

// The last layer sees everything, whatever the list says.
void FreeLast(const RopeSpec& rope, ModelSpec* spec) {
  AttentionSpec& last = spec->layers.back().attention;
  last.window = 0;
  last.rope = rope;
}

// The key that transformers 5.24 saves in the place of the heads' others: what is different in
// single layers, by their numbers.
constexpr std::string_view kOwnKeys = "per_layer_config";

// Refuses what a layer has for itself beside the sizes of its heads.
absl::Status CheckOwnKeys(const JsonSource& layer, const json& keys) {
  for (const auto& [key, value] : keys.items()) {
    if (key == "head_dim" || key == "num_key_value_heads") continue;
    return layer.Unsupported(key, JsonSource::Show(value),
                             "supported in single layers are head_dim and num_key_value_heads");
  }
  return absl::OkStatus();
}

// The layer that a number means: transformers writes all numbers as long as the last layer's, with
// zeros before them. n_layers if it means none.
int32_t LayerNumbered(const std::string& number, int32_t n_layers) {
  int32_t layer = 0;
  for (const char digit : number) {
    if (digit < '0' || digit > '9') return n_layers;
    layer = std::min(10 * layer + (digit - '0'), n_layers);
  }
  return number.empty() ? n_layers : layer;
}

absl::Status ReadOwnHeads(const JsonSource& config, ModelSpec* spec) {
  HEDDLE_ASSIGN_OR_RETURN(const std::optional<JsonSource> own, config.Object(kOwnKeys));
  if (!own.has_value()) return absl::OkStatus();
  for (const auto& [number, keys] : config.Find(kOwnKeys)->items()) {
    const int32_t i = LayerNumbered(number, spec->n_layers());
    HEDDLE_ASSIGN_OR_RETURN(const std::optional<JsonSource> layer, own->Object(number));
    if (!layer.has_value()) continue;
    if (i == spec->n_layers()) {
      return own->Unsupported(number, JsonSource::Show(keys),
                              base::StrCat("expected the number of one of ", i, " layers"));
    }
    HEDDLE_RETURN_IF_ERROR(CheckOwnKeys(*layer, keys));
    AttentionSpec& attention = spec->layers[static_cast<size_t>(i)].attention;
    const bool rotates_whole_heads = attention.rope.rotary_dim == attention.head_dim;
    HEDDLE_ASSIGN_OR_RETURN(attention.head_dim,
                            layer->DimOr("head_dim", kMaxHeadDim, attention.head_dim));
    if (attention.head_dim % 2 != 0) {
      return layer->Error("head_dim", base::StrCat(attention.head_dim), "an even number");
    }
    if (rotates_whole_heads) attention.rope.rotary_dim = attention.head_dim;
    HEDDLE_ASSIGN_OR_RETURN(attention.n_kv_heads,
                            layer->DimOr("num_key_value_heads", kMaxHeads, attention.n_kv_heads));
  }
  return absl::OkStatus();
}

absl::Status ReadGlobalHeads(const JsonSource& config, ModelSpec* spec) {
  HEDDLE_ASSIGN_OR_RETURN(const bool keys_are_values, config.BoolOr("attention_k_eq_v", false));
  HEDDLE_ASSIGN_OR_RETURN(const int32_t head_dim,
                          config.DimOr("global_head_dim", kMaxHeadDim, kGemma4HeadDim));
  const int32_t window_kv_heads = spec->layers.front().attention.n_kv_heads;
  HEDDLE_ASSIGN_OR_RETURN(const int32_t kv_heads,
                          config.DimOr("num_global_key_value_heads", kMaxHeads, window_kv_heads));
  for (LayerSpec& layer : spec->layers) {
    AttentionSpec& attention = layer.attention;
    if (attention.window > 0) continue;
    attention.keys_are_values = keys_are_values;
    if (config.Has(kOwnKeys)) continue;  // then the class looks at no other key
    attention.head_dim = head_dim;
    if (keys_are_values) attention.n_kv_heads = kv_heads;
  }
  return ReadOwnHeads(config, spec);
}

absl::Status ReadExpertsApart(const JsonSource& config, ModelSpec* spec) {
  HEDDLE_ASSIGN_OR_RETURN(const bool has_experts, config.BoolOr("enable_moe_block", false));
  if (!has_experts) {
    // Dense models may have the keys all the same.
    for (const std::string_view key : {"num_experts", "top_k_experts", "moe_intermediate_size"}) {
      static_cast<void>(config.Has(key));
    }
    return absl::OkStatus();
  }
  MoeSpec moe;
  constexpr std::string_view kTopExperts = "top_k_experts";
  HEDDLE_ASSIGN_OR_RETURN(moe.n_experts, config.Dim("num_experts", kernels::kMaxExperts));
  HEDDLE_ASSIGN_OR_RETURN(moe.rule.top_k, config.Dim(kTopExperts, kernels::kMaxExperts));
  HEDDLE_ASSIGN_OR_RETURN(moe.inter, config.Dim("moe_intermediate_size", kMaxInter));
  HEDDLE_RETURN_IF_ERROR(CheckTopK(config, kTopExperts, moe));
  ApplyExperts(moe, spec);
  return absl::OkStatus();
}

// Images alone may be read in both directions.
absl::Status CheckDirection(const JsonSource& config) {
  constexpr std::string_view kKey = "use_bidirectional_attention";
  const json* value = config.Find(kKey);
  if (value == nullptr || *value == "vision" || *value == false) return absl::OkStatus();
  return config.Unsupported(kKey, JsonSource::Show(*value), "supported are null and \"vision\"");
}

absl::Status CheckAllHeads(const ConfigSource& source, std::string_view heads_key,
                           std::string_view kv_heads_key, const ModelSpec& spec) {
  for (const LayerSpec& layer : spec.layers) {
    Hyperparameters heads;
    heads.n_heads = layer.attention.n_heads;
    heads.n_kv_heads = layer.attention.n_kv_heads;
    heads.head_dim = layer.attention.head_dim;
    HEDDLE_RETURN_IF_ERROR(CheckHeads(source, heads_key, kv_heads_key, heads));
  }
  return absl::OkStatus();
}

absl::Status RefineGemma4(const JsonSource& config, ModelSpec* spec, NameMap*) {
  HEDDLE_RETURN_IF_ERROR(CheckDirection(config));
  ApplyToAll(spec);
  if (!config.IsNull("final_logit_softcapping")) {
    HEDDLE_ASSIGN_OR_RETURN(const double softcap,
                            config.PositiveOr("final_logit_softcapping", kMaxFactor, 0.0));
    spec->logit_softcap = static_cast<float>(softcap);
  }
  FreeLast({}, spec);
  HEDDLE_RETURN_IF_ERROR(ReadGlobalHeads(config, spec));
  HEDDLE_RETURN_IF_ERROR(
      CheckAllHeads(config, "num_attention_heads", "num_key_value_heads", *spec));
  Family absent;
  absent.rope_theta = 1e6;
  absent.absent_rope = kGemma4Rope;
  for (LayerSpec& layer : spec->layers) {
    AttentionSpec& attention = layer.attention;
    if (attention.window > 0) continue;
    HEDDLE_ASSIGN_OR_RETURN(attention.rope,
                            ReadRope(config, absent, attention.head_dim, spec->max_context));
  }
  HEDDLE_RETURN_IF_ERROR(ReadLayerInputs(config, spec->vocab, spec));
  if (spec->layer_input_dim > 0 && spec->layer_input_vocab != spec->vocab) {
    return config.Unsupported("vocab_size_per_layer_input", base::StrCat(spec->layer_input_vocab),
                              base::StrCat("expected \"vocab_size\" (", spec->vocab, ")"));
  }
  HEDDLE_RETURN_IF_ERROR(ReadExpertsApart(config, spec));
  HEDDLE_RETURN_IF_ERROR(ReadSharedKeys(config, /*absent=*/0, spec));
  HEDDLE_ASSIGN_OR_RETURN(const bool wide, config.BoolOr("use_double_wide_mlp", false));
  for (LayerSpec& layer : spec->layers) {
    if (wide && layer.attention.kv_layer >= 0) layer.mlp.inter *= 2;
  }
  return absl::OkStatus();
}

// The names of what other architectures lack.
void NameGguf(NameMap* names) {
  NameGgufLayerInputs(names);
  LayerNames& layer = names->layer;
  layer.stream_scale = "blk.{}.layer_output_scale.weight";
  layer.router_norm = "blk.{}.ffn_gate_inp.scale";
  layer.expert_scale = "blk.{}.ffn_down_exps.scale";
  layer.expert_norm = "blk.{}.pre_ffw_norm_2.weight";
  layer.expert_post_norm = "blk.{}.post_ffw_norm_2.weight";
  layer.mlp_own_norm = "blk.{}.post_ffw_norm_1.weight";
}

absl::Status ReadGgufWindowHeads(const GgufSource& source, ModelSpec* spec) {
  constexpr std::string_view kKey = "attention.key_length_swa";
  const int32_t all = spec->layers.front().attention.head_dim;
  HEDDLE_ASSIGN_OR_RETURN(const int32_t head_dim, source.DimOr(kKey, kMaxHeadDim, all));
  for (const std::string_view key : {"attention.value_length_swa", "rope.dimension_count_swa"}) {
    HEDDLE_ASSIGN_OR_RETURN(const int32_t value, source.DimOr(key, kMaxHeadDim, head_dim));
    if (value == head_dim) continue;
    return source.Unsupported(key, base::StrCat(value),
                              base::StrCat("expected ", base::Quote(kKey), " (", head_dim, ")"));
  }
  if (head_dim % 2 != 0) return source.Error(kKey, base::StrCat(head_dim), "an even number");
  for (LayerSpec& layer : spec->layers) {
    if (layer.attention.window == 0) continue;
    layer.attention.head_dim = layer.attention.rope.rotary_dim = head_dim;
  }
  return absl::OkStatus();
}

absl::Status RefineGgufGemma4(const GgufSource& source, const TensorFinder& find, ModelSpec* spec,
                              NameMap* names) {
  constexpr std::string_view kKvHeadCounts = "attention.head_count_kv";
  constexpr std::string_view kInters = "feed_forward_length";
  NameGguf(names);
  ApplyToAll(spec);
  HEDDLE_ASSIGN_OR_RETURN(const double softcap,
                          source.PositiveOr("final_logit_softcapping", kMaxFactor, 0.0));
  spec->logit_softcap = static_cast<float>(softcap);
  HEDDLE_RETURN_IF_ERROR(ReadGgufWindowHeads(source, spec));
  const auto n_layers = spec->layers.size();
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<int64_t> kv_heads,
                          NumbersOfLayers(source, kKvHeadCounts, n_layers));
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<int64_t> inter,
                          NumbersOfLayers(source, kInters, n_layers));
  for (size_t i = 0; i < n_layers; ++i) {
    LayerSpec& layer = spec->layers[i];
    if (kv_heads[i] < 1 || inter[i] < 1) {
      return source.Error(kv_heads[i] < 1 ? kKvHeadCounts : kInters, "0",
                          "at least 1 in each layer");
    }
    layer.attention.n_kv_heads = static_cast<int32_t>(kv_heads[i]);
    layer.mlp.inter = static_cast<int32_t>(inter[i]);
    const std::string block = base::StrCat("blk.", static_cast<int64_t>(i));
    layer.attention.keys_are_values = find(base::StrCat(block, ".attn_v.weight")) == nullptr;
    layer.scales_stream = find(base::StrCat(block, ".layer_output_scale.weight")) != nullptr;
  }
  HEDDLE_RETURN_IF_ERROR(CheckAllHeads(source, "attention.head_count", kKvHeadCounts, *spec));
  if (spec->layers.front().moe.n_experts > 0) ApplyExperts(spec->layers.front().moe, spec);
  HEDDLE_RETURN_IF_ERROR(ReadGgufLayerInputs(source, find, spec));
  return ReadGgufSharedKeys(source, spec);
}

}  // namespace

std::vector<Family> Gemma4Rows(const Family& gemma3) {
  Family gemma4 = gemma3;
  gemma4.name = "gemma4";
  gemma4.model_type = "gemma4_text";
  gemma4.architectures = kGemma4Architectures;
  gemma4.gguf_architectures = kGemma4Gguf;
  gemma4.norm_weight_offset = 0.0f;
  gemma4.sliding_window = 512;
  gemma4.vocab = 262144;
  gemma4.absent_rope = kGemma4Rope;
  gemma4.gguf_renormalise = true;
  gemma4.names = &Gemma4Names();
  gemma4.refine = RefineGemma4;
  gemma4.refine_gguf = RefineGgufGemma4;
  return {gemma4};
}

}  // namespace heddle::engine
