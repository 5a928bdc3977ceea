#include "engine/family/family_names.h"

namespace heddle::engine {

const NameMap& LlamaNames() {
  static const NameMap names = {.embed = "embed_tokens.weight",
                                .positions = "",
                                .final_norm = "norm.weight",
                                .final_norm_bias = "",
                                .lm_head = "lm_head.weight",
                                .layer = {
                                    .attn_norm = "layers.{}.input_layernorm.weight",
                                    .attn_norm_bias = "",
                                    .attn_post_norm = "",
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
                                    .mlp_post_norm = "",
                                    .gate = "layers.{}.mlp.gate_proj.weight",
                                    .up = "layers.{}.mlp.up_proj.weight",
                                    .gate_up = "",
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
                                        .attn_post_norm = "",
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
                                        .mlp_post_norm = "",
                                        .gate = "",
                                        .up = "h.{}.mlp.c_fc.weight",
                                        .gate_up = "",
                                        .down = "h.{}.mlp.c_proj.weight",
                                        .gate_bias = "",
                                        .up_bias = "h.{}.mlp.c_fc.bias",
                                        .down_bias = "h.{}.mlp.c_proj.bias",
                                    },
                                .transposed_linears = true};
  return names;
}

const NameMap& MixtralNames() {
  static const NameMap names = [] {
    NameMap mixtral = LlamaNames();
    LayerNames& layer = mixtral.layer;
    layer.router = "layers.{}.block_sparse_moe.gate.weight";
    layer.expert_gate = "layers.{}.block_sparse_moe.experts.{e}.w1.weight";
    layer.expert_up = "layers.{}.block_sparse_moe.experts.{e}.w3.weight";
    layer.expert_down = "layers.{}.block_sparse_moe.experts.{e}.w2.weight";
    return mixtral;
  }();
  return names;
}

const NameMap& MixtralStackedNames() {
  static const NameMap names = [] {
    NameMap mixtral = LlamaNames();
    mixtral.layer.router = "layers.{}.mlp.gate.weight";
    mixtral.layer.expert_gate_up = "layers.{}.mlp.experts.gate_up_proj";
    mixtral.layer.expert_down = "layers.{}.mlp.experts.down_proj";
    return mixtral;
  }();
  return names;
}

const NameMap& QwenMoeNames() {
  static const NameMap names = [] {
    NameMap qwen = LlamaNames();
    LayerNames& layer = qwen.layer;
    layer.router = "layers.{}.mlp.gate.weight";
    layer.expert_gate = "layers.{}.mlp.experts.{e}.gate_proj.weight";
    layer.expert_up = "layers.{}.mlp.experts.{e}.up_proj.weight";
    layer.expert_down = "layers.{}.mlp.experts.{e}.down_proj.weight";
    layer.shared_gate = "layers.{}.mlp.shared_expert.gate_proj.weight";
    layer.shared_up = "layers.{}.mlp.shared_expert.up_proj.weight";
    layer.shared_down = "layers.{}.mlp.shared_expert.down_proj.weight";
    layer.row_gate = "layers.{}.mlp.shared_expert_gate.weight";
    return qwen;
  }();
  return names;
}

const NameMap& QwenMoeStackedNames() {
  static const NameMap names = [] {
    NameMap qwen = QwenMoeNames();
    qwen.layer.expert_gate = qwen.layer.expert_up = "";
    qwen.layer.expert_gate_up = "layers.{}.mlp.experts.gate_up_proj";
    qwen.layer.expert_down = "layers.{}.mlp.experts.down_proj";
    return qwen;
  }();
  return names;
}

const NameMap& DeciNames() {
  static const NameMap names = [] {
    NameMap deci = LlamaNames();
    deci.layer.attn_linear = "layers.{}.self_attn.linear_attn.weight";
    return deci;
  }();
  return names;
}

const NameMap& DeepseekNames() {
  static const NameMap names = [] {
    NameMap deepseek = QwenMoeNames();
    LayerNames& layer = deepseek.layer;
    layer.choice_bias = "layers.{}.mlp.gate.e_score_correction_bias";
    layer.shared_gate = "layers.{}.mlp.shared_experts.gate_proj.weight";
    layer.shared_up = "layers.{}.mlp.shared_experts.up_proj.weight";
    layer.shared_down = "layers.{}.mlp.shared_experts.down_proj.weight";
    layer.q_a = "layers.{}.self_attn.q_a_proj.weight";
    layer.q_a_norm = "layers.{}.self_attn.q_a_layernorm.weight";
    layer.q_b = "layers.{}.self_attn.q_b_proj.weight";
    layer.kv_a = "layers.{}.self_attn.kv_a_proj_with_mqa.weight";
    layer.kv_a_norm = "layers.{}.self_attn.kv_a_layernorm.weight";
    layer.kv_b = "layers.{}.self_attn.kv_b_proj.weight";
    layer.index_q = "layers.{}.self_attn.indexer.wq_b.weight";
    layer.index_k = "layers.{}.self_attn.indexer.wk.weight";
    layer.index_k_norm = "layers.{}.self_attn.indexer.k_norm.weight";
    layer.index_k_norm_bias = "layers.{}.self_attn.indexer.k_norm.bias";
    layer.index_weights = "layers.{}.self_attn.indexer.weights_proj.weight";
    return deepseek;
  }();
  return names;
}

const NameMap& DeepseekStackedNames() {
  static const NameMap names = [] {
    NameMap deepseek = DeepseekNames();
    deepseek.layer.expert_gate = deepseek.layer.expert_up = "";
    deepseek.layer.expert_gate_up = "layers.{}.mlp.experts.gate_up_proj";
    deepseek.layer.expert_down = "layers.{}.mlp.experts.down_proj";
    return deepseek;
  }();
  return names;
}

const NameMap& CohereNames() {
  static const NameMap names = [] {
    NameMap cohere = LlamaNames();
    cohere.layer.mlp_norm = cohere.layer.attn_norm;
    return cohere;
  }();
  return names;
}

const NameMap& Glm4MoeNames() {
  static const NameMap names = [] {
    NameMap glm = DeepseekNames();
    LayerNames& layer = glm.layer;
    for (std::string* name : {&layer.q_a, &layer.q_a_norm, &layer.q_b, &layer.kv_a,
                              &layer.kv_a_norm, &layer.kv_b, &layer.row_gate}) {
      name->clear();
    }
    return glm;
  }();
  return names;
}

const NameMap& Glm4MoeStackedNames() {
  static const NameMap names = [] {
    NameMap glm = Glm4MoeNames();
    glm.layer.expert_gate = glm.layer.expert_up = "";
    glm.layer.expert_gate_up = "layers.{}.mlp.experts.gate_up_proj";
    glm.layer.expert_down = "layers.{}.mlp.experts.down_proj";
    return glm;
  }();
  return names;
}

const NameMap& ErnieMoeNames() {
  static const NameMap names = [] {
    NameMap ernie = Glm4MoeNames();
    ernie.layer.choice_bias = "layers.{}.mlp.moe_statics.e_score_correction_bias";
    return ernie;
  }();
  return names;
}

const NameMap& ErnieMoeStackedNames() {
  static const NameMap names = [] {
    NameMap ernie = Glm4MoeStackedNames();
    ernie.layer.choice_bias = ErnieMoeNames().layer.choice_bias;
    return ernie;
  }();
  return names;
}

const NameMap& GraniteMoeNames() {
  static const NameMap names = [] {
    NameMap granite = LlamaNames();
    LayerNames& layer = granite.layer;
    layer.gate = layer.up = "";
    layer.gate_up = "layers.{}.shared_mlp.input_linear.weight";
    layer.down = layer.shared_down = "layers.{}.shared_mlp.output_linear.weight";
    layer.router = "layers.{}.block_sparse_moe.router.layer.weight";
    layer.expert_gate_up = "layers.{}.block_sparse_moe.input_linear.weight";
    layer.expert_down = "layers.{}.block_sparse_moe.output_linear.weight";
    return granite;
  }();
  return names;
}

const NameMap& MiniMaxM2Names() {
  static const NameMap names = [] {
    NameMap minimax = MixtralNames();
    minimax.layer.choice_bias = "layers.{}.block_sparse_moe.e_score_correction_bias";
    return minimax;
  }();
  return names;
}

const NameMap& GptOssNames() {
  static const NameMap names = [] {
    NameMap oss = LlamaNames();
    oss.expert_layout = ExpertLayout::kTransposed;
    LayerNames& layer = oss.layer;
    layer.sinks = "layers.{}.self_attn.sinks";
    layer.router = "layers.{}.mlp.router.weight";
    layer.router_bias = "layers.{}.mlp.router.bias";
    layer.expert_gate_up = "layers.{}.mlp.experts.gate_up_proj";
    layer.expert_gate_up_bias = "layers.{}.mlp.experts.gate_up_proj_bias";
    layer.expert_down = "layers.{}.mlp.experts.down_proj";
    layer.expert_down_bias = "layers.{}.mlp.experts.down_proj_bias";
    return oss;
  }();
  return names;
}

const NameMap& GptOssMxfp4Names() {
  static const NameMap names = [] {
    NameMap oss = GptOssNames();
    oss.expert_layout = ExpertLayout::kMxfp4;
    return oss;
  }();
  return names;
}

const NameMap& GemmaNames() {
  static const NameMap names = [] {
    NameMap gemma = LlamaNames();
    gemma.layer.attn_post_norm = "layers.{}.post_attention_layernorm.weight";
    gemma.layer.mlp_norm = "layers.{}.pre_feedforward_layernorm.weight";
    gemma.layer.mlp_post_norm = "layers.{}.post_feedforward_layernorm.weight";
    return gemma;
  }();
  return names;
}

const NameMap& Olmo2Names() { return GemmaNames(); }

const NameMap& GlmNames() {
  static const NameMap names = [] {
    NameMap glm = LlamaNames();
    glm.layer.gate = glm.layer.up = "";
    glm.layer.gate_up = "layers.{}.mlp.gate_up_proj.weight";
    return glm;
  }();
  return names;
}

const NameMap& Glm4Names() {
  static const NameMap names = [] {
    NameMap glm4 = GlmNames();
    glm4.layer.attn_post_norm = "layers.{}.post_self_attn_layernorm.weight";
    glm4.layer.mlp_post_norm = "layers.{}.post_mlp_layernorm.weight";
    return glm4;
  }();
  return names;
}

const NameMap& Phi3Names() {
  static const NameMap names = [] {
    NameMap phi3 = GlmNames();
    phi3.layer.q = phi3.layer.k = phi3.layer.v = "";
    phi3.layer.qkv = "layers.{}.self_attn.qkv_proj.weight";
    return phi3;
  }();
  return names;
}

const NameMap& Starcoder2Names() {
  static const NameMap names = [] {
    NameMap starcoder2 = LlamaNames();
    starcoder2.final_norm_bias = "norm.bias";
    LayerNames& layer = starcoder2.layer;
    layer.attn_norm_bias = "layers.{}.input_layernorm.bias";
    layer.mlp_norm_bias = "layers.{}.post_attention_layernorm.bias";
    layer.up = "layers.{}.mlp.c_fc.weight";
    layer.up_bias = "layers.{}.mlp.c_fc.bias";
    layer.down = "layers.{}.mlp.c_proj.weight";
    layer.down_bias = "layers.{}.mlp.c_proj.bias";
    return starcoder2;
  }();
  return names;
}

const NameMap& NemotronNames() {
  static const NameMap names = [] {
    NameMap nemotron = LlamaNames();
    nemotron.final_norm_bias = "norm.bias";
    nemotron.layer.attn_norm_bias = "layers.{}.input_layernorm.bias";
    nemotron.layer.mlp_norm_bias = "layers.{}.post_attention_layernorm.bias";
    return nemotron;
  }();
  return names;
}

const NameMap& GptNeoxNames() {
  static const NameMap names = [] {
    NameMap neox{.embed = "embed_in.weight",
                 .positions = "",
                 .final_norm = "final_layer_norm.weight",
                 .final_norm_bias = "final_layer_norm.bias",
                 .lm_head = "embed_out.weight",
                 .layer = {},
                 .qkv_by_kv_head = true};
    LayerNames& layer = neox.layer;
    layer.attn_norm = "layers.{}.input_layernorm.weight";
    layer.attn_norm_bias = "layers.{}.input_layernorm.bias";
    layer.qkv = "layers.{}.attention.query_key_value.weight";
    layer.qkv_bias = "layers.{}.attention.query_key_value.bias";
    layer.o = "layers.{}.attention.dense.weight";
    layer.o_bias = "layers.{}.attention.dense.bias";
    layer.mlp_norm = "layers.{}.post_attention_layernorm.weight";
    layer.mlp_norm_bias = "layers.{}.post_attention_layernorm.bias";
    layer.up = "layers.{}.mlp.dense_h_to_4h.weight";
    layer.up_bias = "layers.{}.mlp.dense_h_to_4h.bias";
    layer.down = "layers.{}.mlp.dense_4h_to_h.weight";
    layer.down_bias = "layers.{}.mlp.dense_4h_to_h.bias";
    return neox;
  }();
  return names;
}

const NameMap& FalconNames() {
  static const NameMap names = [] {
    NameMap falcon{.embed = "word_embeddings.weight",
                   .positions = "",
                   .final_norm = "ln_f.weight",
                   .final_norm_bias = "ln_f.bias",
                   .lm_head = "lm_head.weight",
                   .layer = {},
                   .qkv_by_kv_head = true};
    LayerNames& layer = falcon.layer;
    layer.attn_norm = "h.{}.input_layernorm.weight";
    layer.attn_norm_bias = "h.{}.input_layernorm.bias";
    layer.qkv = "h.{}.self_attention.query_key_value.weight";
    layer.qkv_bias = "h.{}.self_attention.query_key_value.bias";
    layer.o = "h.{}.self_attention.dense.weight";
    layer.o_bias = "h.{}.self_attention.dense.bias";
    layer.mlp_norm = "h.{}.post_attention_layernorm.weight";
    layer.mlp_norm_bias = "h.{}.post_attention_layernorm.bias";
    layer.up = "h.{}.mlp.dense_h_to_4h.weight";
    layer.up_bias = "h.{}.mlp.dense_h_to_4h.bias";
    layer.down = "h.{}.mlp.dense_4h_to_h.weight";
    layer.down_bias = "h.{}.mlp.dense_4h_to_h.bias";
    return falcon;
  }();
  return names;
}

const NameMap& HunYuanNames() {
  static const NameMap names = [] {
    NameMap hunyuan = LlamaNames();
    hunyuan.layer.q_norm = "layers.{}.self_attn.query_layernorm.weight";
    hunyuan.layer.k_norm = "layers.{}.self_attn.key_layernorm.weight";
    return hunyuan;
  }();
  return names;
}

const NameMap& HunYuanMoeNames() {
  static const NameMap names = [] {
    NameMap moe = HunYuanNames();
    LayerNames& layer = moe.layer;
    layer.router = "layers.{}.mlp.gate.wg.weight";
    layer.expert_gate = "layers.{}.mlp.experts.{e}.gate_proj.weight";
    layer.expert_up = "layers.{}.mlp.experts.{e}.up_proj.weight";
    layer.expert_down = "layers.{}.mlp.experts.{e}.down_proj.weight";
    layer.shared_gate = "layers.{}.mlp.shared_mlp.gate_proj.weight";
    layer.shared_up = "layers.{}.mlp.shared_mlp.up_proj.weight";
    layer.shared_down = "layers.{}.mlp.shared_mlp.down_proj.weight";
    return moe;
  }();
  return names;
}

const NameMap& HunYuanMoeStackedNames() {
  static const NameMap names = [] {
    NameMap moe = HunYuanMoeNames();
    moe.layer.expert_gate = moe.layer.expert_up = "";
    moe.layer.expert_gate_up = "layers.{}.mlp.experts.gate_up_proj";
    moe.layer.expert_down = "layers.{}.mlp.experts.down_proj";
    return moe;
  }();
  return names;
}

}  // namespace heddle::engine
