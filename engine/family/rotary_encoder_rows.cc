#include "engine/family/rotary_encoder_rows.h"

#include <string>

#include "base/message.h"
#include "base/status.h"
#include "engine/family/describe.h"
#include "engine/family/encoder_classes.h"
#include "engine/family/encoder_rows.h"
#include "nlohmann/json.hpp"

namespace heddle::engine {
namespace {

constexpr std::string_view kGteArchitectures[] = {"GteModel", "GteForMaskedLM"};
// Their authors' own code has the first two names; later configurations with its keys the others.
constexpr std::string_view kNewArchitectures[] = {"NewModel", "NewForMaskedLM", "GteModel",
                                                  "GteForMaskedLM"};
constexpr std::string_view kJinaArchitectures[] = {"JinaEmbeddingsV3Model",
                                                   "JinaEmbeddingsV3ForMaskedLM"};

NameMap EndNames() {
  NameMap names;
  names.embed = "embeddings.word_embeddings.weight";
  names.token_types = "embeddings.token_type_embeddings.weight";
  names.embed_norm = "embeddings.LayerNorm.weight";
  names.embed_norm_bias = "embeddings.LayerNorm.bias";
  return names;
}

NameMap AttentionNames() {
  NameMap names = EndNames();
  LayerNames& layer = names.layer;
  layer.attn_post_norm = "layers.{}.post_attention_layernorm.weight";
  layer.attn_post_norm_bias = "layers.{}.post_attention_layernorm.bias";
  layer.q = "layers.{}.self_attn.q_proj.weight";
  layer.k = "layers.{}.self_attn.k_proj.weight";
  layer.v = "layers.{}.self_attn.v_proj.weight";
  layer.q_bias = "layers.{}.self_attn.q_proj.bias";
  layer.k_bias = "layers.{}.self_attn.k_proj.bias";
  layer.v_bias = "layers.{}.self_attn.v_proj.bias";
  layer.o = "layers.{}.self_attn.o_proj.weight";
  layer.o_bias = "layers.{}.self_attn.o_proj.bias";
  layer.mlp_post_norm = "layers.{}.post_mlp_layernorm.weight";
  layer.mlp_post_norm_bias = "layers.{}.post_mlp_layernorm.bias";
  return names;
}

const NameMap& GteNames() {
  static const NameMap names = [] {
    NameMap gte = AttentionNames();
    gte.layer.gate = "layers.{}.mlp.gate_proj.weight";
    gte.layer.up = "layers.{}.mlp.up_proj.weight";
    gte.layer.down = "layers.{}.mlp.down_proj.weight";
    gte.layer.down_bias = "layers.{}.mlp.down_proj.bias";
    return gte;
  }();
  return names;
}

const NameMap& NewNames() {
  static const NameMap names = [] {
    NameMap own = EndNames();
    LayerNames& layer = own.layer;
    layer.attn_post_norm = "encoder.layer.{}.attn_ln.weight";
    layer.attn_post_norm_bias = "encoder.layer.{}.attn_ln.bias";
    layer.qkv = "encoder.layer.{}.attention.qkv_proj.weight";
    layer.qkv_bias = "encoder.layer.{}.attention.qkv_proj.bias";
    layer.o = "encoder.layer.{}.attention.o_proj.weight";
    layer.o_bias = "encoder.layer.{}.attention.o_proj.bias";
    layer.mlp_post_norm = "encoder.layer.{}.mlp_ln.weight";
    layer.mlp_post_norm_bias = "encoder.layer.{}.mlp_ln.bias";
    layer.gate_up = "encoder.layer.{}.mlp.up_gate_proj.weight";
    layer.down = "encoder.layer.{}.mlp.down_proj.weight";
    layer.down_bias = "encoder.layer.{}.mlp.down_proj.bias";
    own.up_first = true;
    return own;
  }();
  return names;
}

const NameMap& JinaNames() {
  static const NameMap names = [] {
    NameMap jina = AttentionNames();
    jina.layer.up = "layers.{}.mlp.fc1.weight";
    jina.layer.down = "layers.{}.mlp.fc2.weight";
    jina.layer.up_bias = "layers.{}.mlp.fc1.bias";
    jina.layer.down_bias = "layers.{}.mlp.fc2.bias";
    return jina;
  }();
  return names;
}

absl::Status RefineRotary(const JsonSource& config, ModelSpec* spec, NameMap*) {
  constexpr std::string_view kTypes = "type_vocab_size";
  constexpr int64_t kMostTypes = 1 << 10;
  int64_t types = 1;
  if (config.Has(kTypes)) {
    HEDDLE_ASSIGN_OR_RETURN(types, config.Int(kTypes));
  }
  if (types < 0 || types > kMostTypes) {
    return config.Error(kTypes, base::StrCat(types), base::StrCat("from 0 to ", kMostTypes));
  }
  spec->token_types = static_cast<int32_t>(types);
  ApplyBert(spec);
  return absl::OkStatus();
}

// Refuses what the authors' own configurations may ask for and the row cannot express.
absl::Status RefineNew(const JsonSource& config, ModelSpec* spec, NameMap* names) {
  struct Expected {
    std::string_view key;
    std::string_view value;
  };
  for (const Expected& expected :
       {Expected{"position_embedding_type", "rope"}, Expected{"layer_norm_type", "layer_norm"}}) {
    HEDDLE_ASSIGN_OR_RETURN(const std::string value, config.StringOr(expected.key, expected.value));
    if (value != expected.value) {
      return config.Unsupported(expected.key, base::Quote(value),
                                base::StrCat("supported is ", expected.value));
    }
  }
  HEDDLE_ASSIGN_OR_RETURN(const bool packed, config.BoolOr("pack_qkv", true));
  HEDDLE_ASSIGN_OR_RETURN(const bool scaled, config.BoolOr("logn_attention_scale", false));
  if (!packed) return config.Unsupported("pack_qkv", "false", "expected true");
  if (scaled) return config.Unsupported("logn_attention_scale", "true", "expected false");
  // They choose among ways to compute the same.
  for (const std::string_view key :
       {"logn_attention_clip1", "unpad_inputs", "use_memory_efficient_attention"}) {
    static_cast<void>(config.Has(key));
  }
  return RefineRotary(config, spec, names);
}

Family Gte(const Family& bert) {
  Family gte = bert;
  gte.name = gte.model_type = "gte";
  gte.architectures = kGteArchitectures;
  gte.gguf_architectures = {};
  gte.refine_gguf = nullptr;
  gte.unless_key = "pack_qkv";
  gte.rope_theta = 160000.0;
  gte.max_context = 8192;
  gte.gated = gte.rope = true;
  gte.prefix = "gte.";
  gte.names = &GteNames();
  gte.refine = RefineRotary;
  return gte;
}

Family NewGte(const Family& bert) {
  Family own = Gte(bert);
  own.name = own.model_type = "new";
  own.architectures = kNewArchitectures;
  own.unless_key = {};
  own.rope_theta = 10000.0;
  own.fixed_ntk = true;
  own.prefix = "new.";
  own.names = &NewNames();
  own.refine = RefineNew;
  return own;
}

// The published weights as transformers has them, whose tasks are adapters; those of the authors'
// own code are of another architecture.
Family Jina(const Family& bert) {
  Family jina = Gte(bert);
  jina.name = jina.model_type = "jina_embeddings_v3";
  jina.architectures = kJinaArchitectures;
  jina.unless_key = {};
  jina.norm_eps = 1e-5;
  jina.rope_theta = 20000.0;
  jina.max_context = 8194;
  jina.gated = false;
  jina.prefix = "roberta.";
  jina.names = &JinaNames();
  jina.classifier = RobertaClasses;
  return jina;
}

}  // namespace

std::vector<Family> RotaryEncoderRows(const Family& bert) {
  return {Gte(bert), NewGte(bert), Jina(bert)};
}

}  // namespace heddle::engine
