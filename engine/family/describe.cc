#include "engine/family/describe.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/message.h"
#include "base/status.h"
#include "engine/family/describe_draft.h"
#include "engine/family/known_keys.h"
#include "engine/family/model_description.h"
#include "engine/family/pooled.h"
#include "nlohmann/json.hpp"

namespace heddle::engine {
namespace {

// Prefixes of the decoder in models that also read images; transformers has moved it once.
constexpr std::string_view kTextPart = "language_model.";
constexpr std::string_view kIdeficsPart = "text_model.";  // as Idefics 3 and SmolVLM call it
// Keys of config.json with the decoder's configuration: transformers' own, and those of authors'
// own code (InternVL, Nemotron Nano VL).
constexpr std::string_view kTextConfigs[] = {"text_config", "llm_config"};

// The prefix of the checkpoint's names: the family's, none if only the bare decoder was saved, or
// that of a decoder inside a larger model.
std::string FindPrefix(const Checkpoint& checkpoint, const Family& family) {
  std::string own(family.prefix);
  for (const std::string& prefix :
       {own, std::string(), std::string(kTextPart) + own, own + std::string(kTextPart),
        own + std::string(kIdeficsPart)}) {
    if (checkpoint.Find(prefix + family.names->embed) != nullptr) return prefix;
  }
  return own;
}

// Whether some tensor's name ends in `ending`.
bool HasEnding(const Checkpoint& checkpoint, std::string_view ending) {
  auto ends = [ending](const CheckpointTensor& tensor) { return tensor.name.ends_with(ending); };
  return std::ranges::any_of(checkpoint.tensors(), ends);
}

const NameMap& FindNames(const Checkpoint& checkpoint, const Family& family) {
  if (family.mxfp4_names != nullptr && HasEnding(checkpoint, ".experts.down_proj_blocks")) {
    return *family.mxfp4_names;
  }
  if (family.stacked_names != nullptr && HasEnding(checkpoint, ".experts.down_proj")) {
    return *family.stacked_names;
  }
  return *family.names;
}

absl::StatusOr<ConfigParts> SplitConfig(const JsonSource& whole, const JsonSource& generation) {
  for (const std::string_view key : kTextConfigs) {
    HEDDLE_ASSIGN_OR_RETURN(const std::optional<JsonSource> text, whole.Object(key));
    if (text.has_value()) return ConfigParts{*text, whole, generation};
  }
  return ConfigParts{whole, whole, generation};
}

// `check` looks at the decoder's configuration when all is read; nullptr: it is a network's that
// drafts, and nobody does.
absl::StatusOr<ModelDescription> DescribeParsed(const nlohmann::json& config,
                                                const nlohmann::json& generation_config,
                                                std::string_view file,
                                                absl::Status (*check)(const JsonSource&)) {
  if (!config.is_object() || !generation_config.is_object()) {
    return absl::InvalidArgumentError(base::StrCat(file, " is not a JSON object"));
  }
  HEDDLE_ASSIGN_OR_RETURN(
      const ConfigParts parts,
      SplitConfig({std::string(file), config}, {std::string(file), generation_config}));
  HEDDLE_ASSIGN_OR_RETURN(const Family* family, FindFamily(parts.decoder));
  HEDDLE_ASSIGN_OR_RETURN(ModelDescription description,
                          DescribeConfigWithNames(*family, parts, *family->names, family->prefix));
  if (check != nullptr) {
    HEDDLE_RETURN_IF_ERROR(ReadDirections(parts.decoder, *family, &description.spec));
    HEDDLE_RETURN_IF_ERROR(check(parts.decoder));
  }
  return description;
}

}  // namespace

absl::Status CheckHeads(const ConfigSource& source, std::string_view heads_key,
                        std::string_view kv_heads_key, const Hyperparameters& values) {
  if (values.n_heads % values.n_kv_heads != 0) {
    return source.Error(
        kv_heads_key, base::StrCat(values.n_kv_heads),
        base::StrCat("a divisor of ", base::Quote(heads_key), " (", values.n_heads, ")"));
  }
  int64_t width = int64_t{values.n_heads} * values.head_dim;
  if (width > kMaxInter) {
    return source.Error(
        heads_key, base::StrCat(values.n_heads),
        base::StrCat("at most ", kMaxInter / values.head_dim, " with heads of ", values.head_dim));
  }
  return absl::OkStatus();
}

void SetNoHeads(Hyperparameters* values) {
  values->n_heads = values->n_kv_heads = values->inter = 1;
  values->head_dim = 2;
}

ModelSpec MakeSpec(const Family& family, const Hyperparameters& values) {
  LayerSpec layer;
  layer.attention = {.n_heads = values.n_heads,
                     .n_kv_heads = values.n_kv_heads,
                     .head_dim = values.head_dim,
                     .qkv_bias = values.qkv_bias,
                     .out_bias = values.out_bias,
                     .qk_norm = family.qk_norm,
                     .window = 0,
                     .scale = 1.0f / std::sqrt(static_cast<float>(values.head_dim)),
                     .rope = values.rope};
  layer.mlp = {.inter = values.inter,
               .activation = values.activation,
               .gated = family.gated,
               .bias = values.mlp_bias};
  layer.pre_norm = family.pre_norm;
  layer.post_norm = family.post_norm;
  ModelSpec spec;
  spec.family = family.name;
  spec.hidden = values.hidden;
  spec.vocab = values.vocab;
  spec.max_context = values.max_context;
  spec.long_context = values.long_context > values.max_context ? values.long_context : 0;
  spec.norm = family.norm;
  spec.norm_eps = static_cast<float>(values.norm_eps);
  spec.norm_weight_offset = family.norm_weight_offset;
  spec.tied_embeddings = values.tied_embeddings;
  spec.learned_positions = !family.rope;
  spec.layers.assign(static_cast<size_t>(values.n_layers), layer);
  for (size_t i = 0; i < values.windows.size(); ++i) {
    AttentionSpec& attention = spec.layers[i].attention;
    attention.window = values.windows[i];
    if (attention.window > 0 && values.window_rope) attention.rope = *values.window_rope;
  }
  return spec;
}

NameMap MakeNames(const NameMap& pattern, std::string_view prefix, const ModelSpec& spec) {
  NameMap names = pattern;
  LayerNames& layer = names.layer;
  const LayerSpec& first = spec.layers.front();
  auto clear_unless = [](bool present, std::initializer_list<std::string*> members) {
    for (std::string* name : members) {
      if (!present) name->clear();
    }
  };
  clear_unless(spec.learned_positions, {&names.positions});
  clear_unless(!spec.tied_embeddings, {&names.lm_head});
  clear_unless(spec.norm == NormKind::kLayer,
               {&names.final_norm_bias, &layer.attn_norm_bias, &layer.mlp_norm_bias});
  clear_unless(first.attention.qkv_bias,
               {&layer.q_bias, &layer.k_bias, &layer.v_bias, &layer.qkv_bias});
  clear_unless(first.attention.out_bias, {&layer.o_bias});
  clear_unless(first.attention.qk_norm != QkNorm::kNone, {&layer.q_norm, &layer.k_norm});
  clear_unless(first.pre_norm,
               {&layer.attn_norm, &layer.attn_norm_bias, &layer.mlp_norm, &layer.mlp_norm_bias});
  const bool norms_behind = first.post_norm || first.stream_norm;
  clear_unless(norms_behind, {&layer.attn_post_norm, &layer.mlp_post_norm});
  clear_unless(norms_behind && spec.norm == NormKind::kLayer,
               {&layer.attn_post_norm_bias, &layer.mlp_post_norm_bias});
  clear_unless(spec.token_types > 0, {&names.token_types});
  clear_unless(spec.distances == DistanceRule::kBuckets, {&names.distances});
  clear_unless(spec.layer_input_dim > 0,
               {&names.layer_inputs, &names.layer_inputs_in, &names.layer_inputs_norm,
                &layer.input_gate, &layer.input_out, &layer.input_post_norm});
  const AltUpSpec& altup = spec.altup;
  clear_unless(altup.count > 1, {&names.altup_in, &names.altup_out});
  // Checkpoints hold the scale even where it is not applied (!altup.scaled).
  clear_unless(altup.count > 0, {&layer.altup_router_norm, &layer.altup_router,
                                 &layer.altup_predict, &layer.altup_correct, &layer.altup_scale});
  clear_unless(first.laurel_rank > 0, {&layer.laurel_in, &layer.laurel_out, &layer.laurel_norm});
  clear_unless(spec.embedding_norm, {&names.embed_norm, &names.embed_norm_bias});
  clear_unless(spec.final_norm, {&names.final_norm, &names.final_norm_bias});
  clear_unless(first.mlp.gated, {&layer.gate, &layer.gate_bias, &layer.gate_up});
  clear_unless(first.mlp.bias, {&layer.gate_bias, &layer.up_bias, &layer.down_bias});

  auto add_prefix = [prefix](std::string* name) {
    if (!name->empty()) name->insert(0, prefix);
  };
  for (std::string* name :
       {&names.embed, &names.positions, &names.token_types, &names.distances, &names.layer_inputs,
        &names.layer_inputs_in, &names.layer_inputs_norm, &names.altup_in, &names.altup_out,
        &names.embed_norm, &names.embed_norm_bias, &names.final_norm, &names.final_norm_bias}) {
    add_prefix(name);
  }
  layer.ForEach(add_prefix);
  return names;
}

absl::StatusOr<ModelDescription> DescribeDraftConfig(const nlohmann::json& config,
                                                     std::string_view file) {
  const nlohmann::json generation = nlohmann::json::object();
  return DescribeParsed(config, generation, file, nullptr);
}

absl::StatusOr<ModelDescription> DescribeConfig(const nlohmann::json& config,
                                                const nlohmann::json& generation_config,
                                                std::string_view file) {
  return DescribeParsed(config, generation_config, file, RefuseUnreadKeys);
}

absl::StatusOr<ModelDescription> DescribeGgufAs(const Checkpoint& checkpoint,
                                                std::string_view architecture) {
  const GgufFile* gguf = checkpoint.gguf();
  if (gguf == nullptr) {
    return absl::InvalidArgumentError(
        base::StrCat(checkpoint.path().string(), " is not a GGUF file"));
  }
  const auto find = [&](std::string_view name) { return checkpoint.Find(name); };
  return DescribeGguf(*gguf, find, architecture);
}

absl::StatusOr<ModelDescription> Describe(const Checkpoint& checkpoint) {
  if (const GgufFile* gguf = checkpoint.gguf()) {
    return DescribeGguf(*gguf, [&](std::string_view name) { return checkpoint.Find(name); });
  }
  HEDDLE_ASSIGN_OR_RETURN(
      const ConfigParts parts,
      SplitConfig({(checkpoint.path() / "config.json").string(), checkpoint.config()},
                  {(checkpoint.path() / "generation_config.json").string(),
                   checkpoint.generation_config()}));
  HEDDLE_ASSIGN_OR_RETURN(const Family* family, FindFamily(parts.decoder));
  const std::string prefix = FindPrefix(checkpoint, *family);
  NameMap names = FindNames(checkpoint, *family);
  if (HasEnding(checkpoint, ".self_attn.seg_embeddings.weight")) {
    names.layer.segments = kSegmentNames;
  }
  if (prefix.starts_with(kTextPart)) names.lm_head.insert(0, kTextPart);
  HEDDLE_ASSIGN_OR_RETURN(ModelDescription description,
                          DescribeConfigWithNames(*family, parts, names, prefix));
  HEDDLE_RETURN_IF_ERROR(ReadDirections(parts.decoder, *family, &description.spec));
  HEDDLE_RETURN_IF_ERROR(DescribePooled(checkpoint, *family, prefix, parts, &description));
  HEDDLE_RETURN_IF_ERROR(RefuseUnreadKeys(parts.decoder));
  return description;
}

}  // namespace heddle::engine
