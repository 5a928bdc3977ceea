#include "engine/model/family_table.h"

#include <array>
#include <cmath>

#include "absl/status/status.h"
#include "base/status.h"
#include "engine/model/config_source.h"

namespace heddle::engine {
namespace {

constexpr std::string_view kLlamaArchitectures[] = {"LlamaForCausalLM"};
constexpr std::string_view kMistralArchitectures[] = {"MistralForCausalLM"};
constexpr std::string_view kQwen2Architectures[] = {"Qwen2ForCausalLM"};
constexpr std::string_view kQwen3Architectures[] = {"Qwen3ForCausalLM"};
constexpr std::string_view kGpt2Architectures[] = {"GPT2LMHeadModel"};
constexpr std::string_view kLlamaGguf[] = {"llama"};
constexpr std::string_view kQwen2Gguf[] = {"qwen2"};
constexpr std::string_view kQwen3Gguf[] = {"qwen3"};
constexpr std::string_view kGpt2Gguf[] = {"gpt2"};

// Names that Llama gave and most families took over.
const NameMap& LlamaNames() {
  static const NameMap names = {.embed = "embed_tokens.weight",
                                .positions = "",
                                .final_norm = "norm.weight",
                                .final_norm_bias = "",
                                .lm_head = "lm_head.weight",
                                .layer = {
                                    .attn_norm = "layers.{}.input_layernorm.weight",
                                    .attn_norm_bias = "",
                                    .q = "layers.{}.self_attn.q_proj.weight",
                                    .k = "layers.{}.self_attn.k_proj.weight",
                                    .v = "layers.{}.self_attn.v_proj.weight",
                                    .qkv = "",
                                    .q_bias = "layers.{}.self_attn.q_proj.bias",
                                    .k_bias = "layers.{}.self_attn.k_proj.bias",
                                    .v_bias = "layers.{}.self_attn.v_proj.bias",
                                    .qkv_bias = "",
                                    .q_norm = "layers.{}.self_attn.q_norm.weight",
                                    .k_norm = "layers.{}.self_attn.k_norm.weight",
                                    .o = "layers.{}.self_attn.o_proj.weight",
                                    .o_bias = "layers.{}.self_attn.o_proj.bias",
                                    .mlp_norm = "layers.{}.post_attention_layernorm.weight",
                                    .mlp_norm_bias = "",
                                    .gate = "layers.{}.mlp.gate_proj.weight",
                                    .up = "layers.{}.mlp.up_proj.weight",
                                    .down = "layers.{}.mlp.down_proj.weight",
                                    .gate_bias = "layers.{}.mlp.gate_proj.bias",
                                    .up_bias = "layers.{}.mlp.up_proj.bias",
                                    .down_bias = "layers.{}.mlp.down_proj.bias",
                                }};
  return names;
}

const NameMap& Gpt2Names() {
  static const NameMap names = {.embed = "wte.weight",
                                .positions = "wpe.weight",
                                .final_norm = "ln_f.weight",
                                .final_norm_bias = "ln_f.bias",
                                .lm_head = "lm_head.weight",
                                .layer =
                                    {
                                        .attn_norm = "h.{}.ln_1.weight",
                                        .attn_norm_bias = "h.{}.ln_1.bias",
                                        .q = "",
                                        .k = "",
                                        .v = "",
                                        .qkv = "h.{}.attn.c_attn.weight",
                                        .q_bias = "",
                                        .k_bias = "",
                                        .v_bias = "",
                                        .qkv_bias = "h.{}.attn.c_attn.bias",
                                        .q_norm = "",
                                        .k_norm = "",
                                        .o = "h.{}.attn.c_proj.weight",
                                        .o_bias = "h.{}.attn.c_proj.bias",
                                        .mlp_norm = "h.{}.ln_2.weight",
                                        .mlp_norm_bias = "h.{}.ln_2.bias",
                                        .gate = "",
                                        .up = "h.{}.mlp.c_fc.weight",
                                        .down = "h.{}.mlp.c_proj.weight",
                                        .gate_bias = "",
                                        .up_bias = "h.{}.mlp.c_fc.bias",
                                        .down_bias = "h.{}.mlp.c_proj.bias",
                                    },
                                .transposed_linears = true};
  return names;
}

absl::Status RefineGpt2(const JsonSource& config, ModelSpec* spec) {
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

const Family& Llama() {
  static const Family family = {.name = "llama",
                                .model_type = "llama",
                                .architectures = kLlamaArchitectures,
                                .gguf_architectures = kLlamaGguf,
                                .keys = {},
                                .qkv_bias = Flag::Key("attention_bias", false),
                                .out_bias = Flag::Key("attention_bias", false),
                                .mlp_bias = Flag::Key("mlp_bias", false),
                                .gguf_rope_layout = RopeLayout::kInterleaved,
                                .prefix = "model.",
                                .names = &LlamaNames()};
  return family;
}

std::array<Family, 5> MakeTable() {
  Family llama = Llama();

  Family mistral = llama;  // its GGUF files are of architecture "llama"
  mistral.name = mistral.model_type = "mistral";
  mistral.architectures = kMistralArchitectures;
  mistral.gguf_architectures = {};
  mistral.qkv_bias = mistral.out_bias = mistral.mlp_bias = Flag::Never();
  mistral.window = WindowRule::kAllLayers;
  mistral.sliding_window = 4096;

  Family qwen2 = llama;
  qwen2.name = qwen2.model_type = "qwen2";
  qwen2.architectures = kQwen2Architectures;
  qwen2.gguf_architectures = kQwen2Gguf;
  qwen2.gguf_rope_layout = RopeLayout::kHalf;
  qwen2.qkv_bias = Flag::Always();
  qwen2.out_bias = qwen2.mlp_bias = Flag::Never();
  qwen2.window = WindowRule::kUpperLayers;

  Family qwen3 = qwen2;
  qwen3.name = qwen3.model_type = "qwen3";
  qwen3.architectures = kQwen3Architectures;
  qwen3.gguf_architectures = kQwen3Gguf;
  qwen3.qkv_bias = qwen3.out_bias = Flag::Key("attention_bias", false);
  qwen3.qk_norm = true;
  qwen3.head_dim = 128;

  Family gpt2;
  gpt2.name = gpt2.model_type = "gpt2";
  gpt2.architectures = kGpt2Architectures;
  gpt2.gguf_architectures = kGpt2Gguf;
  gpt2.keys = {.hidden = "n_embd",
               .n_layers = "n_layer",
               .n_heads = "n_head",
               .n_kv_heads = "",
               .head_dim = "",
               .inter = "n_inner",
               .max_context = "n_positions",
               .norm_eps = "layer_norm_epsilon",
               .activation = "activation_function"};
  gpt2.activation = "gelu_new";
  gpt2.norm_eps = 1e-5;
  gpt2.tied_embeddings = true;
  gpt2.inter_per_hidden = 4;
  gpt2.norm = NormKind::kLayer;
  gpt2.gated = gpt2.rope = false;
  gpt2.qkv_bias = gpt2.out_bias = gpt2.mlp_bias = Flag::Always();
  gpt2.prefix = "transformer.";
  gpt2.names = &Gpt2Names();
  gpt2.refine = RefineGpt2;

  return {llama, mistral, qwen2, qwen3, gpt2};
}

}  // namespace

std::span<const Family> FamilyTable() {
  static const std::array<Family, 5> table = MakeTable();
  return table;
}

const NameMap& GgufNames() {
  static const NameMap names = {.embed = "token_embd.weight",
                                .positions = "position_embd.weight",
                                .final_norm = "output_norm.weight",
                                .final_norm_bias = "output_norm.bias",
                                .lm_head = "output.weight",
                                .layer = {
                                    .attn_norm = "blk.{}.attn_norm.weight",
                                    .attn_norm_bias = "blk.{}.attn_norm.bias",
                                    .q = "blk.{}.attn_q.weight",
                                    .k = "blk.{}.attn_k.weight",
                                    .v = "blk.{}.attn_v.weight",
                                    .qkv = "blk.{}.attn_qkv.weight",
                                    .q_bias = "blk.{}.attn_q.bias",
                                    .k_bias = "blk.{}.attn_k.bias",
                                    .v_bias = "blk.{}.attn_v.bias",
                                    .qkv_bias = "blk.{}.attn_qkv.bias",
                                    .q_norm = "blk.{}.attn_q_norm.weight",
                                    .k_norm = "blk.{}.attn_k_norm.weight",
                                    .o = "blk.{}.attn_output.weight",
                                    .o_bias = "blk.{}.attn_output.bias",
                                    .mlp_norm = "blk.{}.ffn_norm.weight",
                                    .mlp_norm_bias = "blk.{}.ffn_norm.bias",
                                    .gate = "blk.{}.ffn_gate.weight",
                                    .up = "blk.{}.ffn_up.weight",
                                    .down = "blk.{}.ffn_down.weight",
                                    .gate_bias = "blk.{}.ffn_gate.bias",
                                    .up_bias = "blk.{}.ffn_up.bias",
                                    .down_bias = "blk.{}.ffn_down.bias",
                                }};
  return names;
}

}  // namespace heddle::engine
