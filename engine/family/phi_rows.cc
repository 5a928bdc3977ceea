#include "engine/family/phi_rows.h"

#include "base/status.h"
#include "engine/family/config_source.h"

namespace heddle::engine {
namespace {

constexpr std::string_view kPhiArchitectures[] = {"PhiForCausalLM"};
constexpr std::string_view kPhiGguf[] = {"phi2"};

// Attention and MLP read the stream through one norm.
void ReadOnce(ModelSpec* spec, NameMap* names) {
  for (LayerSpec& layer : spec->layers) layer.wiring = Wiring::kParallel;
  names->layer.mlp_norm = names->layer.attn_norm;
  names->layer.mlp_norm_bias = names->layer.attn_norm_bias;
}

absl::Status RefinePhi(const JsonSource& config, ModelSpec* spec, NameMap* names) {
  HEDDLE_ASSIGN_OR_RETURN(const bool qk_norm, config.BoolOr("qk_layernorm", false));
  if (qk_norm) return config.Unsupported("qk_layernorm", "true", "expected false");
  if (spec->tied_embeddings) {
    return config.Unsupported("tie_word_embeddings", "true", "expected false");
  }
  ReadOnce(spec, names);
  return absl::OkStatus();
}

absl::Status RefineGgufPhi(const GgufSource&, const TensorFinder&, ModelSpec* spec,
                           NameMap* names) {
  names->lm_head_bias = "output.bias";
  ReadOnce(spec, names);
  return absl::OkStatus();
}

const NameMap& PhiNames() {
  static const NameMap names = [] {
    NameMap phi{.embed = "embed_tokens.weight",
                .positions = "",
                .final_norm = "final_layernorm.weight",
                .final_norm_bias = "final_layernorm.bias",
                .lm_head = "lm_head.weight",
                .lm_head_bias = "lm_head.bias",
                .layer = {}};
    LayerNames& layer = phi.layer;
    layer.attn_norm = "layers.{}.input_layernorm.weight";
    layer.attn_norm_bias = "layers.{}.input_layernorm.bias";
    layer.q = "layers.{}.self_attn.q_proj.weight";
    layer.k = "layers.{}.self_attn.k_proj.weight";
    layer.v = "layers.{}.self_attn.v_proj.weight";
    layer.q_bias = "layers.{}.self_attn.q_proj.bias";
    layer.k_bias = "layers.{}.self_attn.k_proj.bias";
    layer.v_bias = "layers.{}.self_attn.v_proj.bias";
    layer.o = "layers.{}.self_attn.dense.weight";
    layer.o_bias = "layers.{}.self_attn.dense.bias";
    layer.up = "layers.{}.mlp.fc1.weight";
    layer.up_bias = "layers.{}.mlp.fc1.bias";
    layer.down = "layers.{}.mlp.fc2.weight";
    layer.down_bias = "layers.{}.mlp.fc2.bias";
    return phi;
  }();
  return names;
}

}  // namespace

Family PhiRow(const Family& neox) {
  Family phi = neox;
  phi.name = phi.model_type = "phi";
  phi.architectures = kPhiArchitectures;
  phi.gguf_architectures = kPhiGguf;
  phi.keys.n_kv_heads = "num_key_value_heads";
  phi.keys.rope_theta = "rope_theta";
  phi.keys.rotary_part = "partial_rotary_factor";
  phi.activation = "gelu_new";
  phi.rotary_part = 0.5;
  phi.max_context = 2048;
  phi.qkv_bias = phi.out_bias = phi.mlp_bias = Flag::Always();
  phi.prefix = "model.";
  phi.names = &PhiNames();
  phi.refine = RefinePhi;
  phi.refine_gguf = RefineGgufPhi;
  return phi;
}

}  // namespace heddle::engine
