#include "engine/family/family_table.h"

#include <vector>

#include "engine/family/encoder_rows.h"
#include "engine/family/family_names.h"
#include "engine/family/family_refine.h"
#include "engine/family/gemma3n_rows.h"
#include "engine/family/gemma4_rows.h"
#include "engine/family/gguf_refine.h"
#include "engine/family/hybrid_rows.h"
#include "engine/family/llama4_rows.h"
#include "engine/family/mamba_rows.h"
#include "engine/family/moe_rows.h"
#include "engine/family/more_encoder_rows.h"
#include "engine/family/newer_rows.h"
#include "engine/family/phi_rows.h"
#include "engine/family/recent_rows.h"
#include "engine/family/recurrent_rows.h"
#include "engine/family/rotary_encoder_rows.h"
#include "engine/family/rwkv_rows.h"
#include "engine/family/sambay_rows.h"
#include "engine/family/selective_rows.h"
#include "engine/family/sparse_rows.h"
#include "engine/family/vision_rows.h"

namespace heddle::engine {
namespace {

// The second is what the first converters of LLaMA wrote.
constexpr std::string_view kLlamaArchitectures[] = {"LlamaForCausalLM", "LLaMAForCausalLM"};
constexpr std::string_view kMistralArchitectures[] = {"MistralForCausalLM"};
constexpr std::string_view kQwen2Architectures[] = {"Qwen2ForCausalLM"};
constexpr std::string_view kQwen3Architectures[] = {"Qwen3ForCausalLM"};
constexpr std::string_view kGpt2Architectures[] = {"GPT2LMHeadModel"};
constexpr std::string_view kDeciArchitectures[] = {"DeciLMForCausalLM"};
constexpr std::string_view kDeciGguf[] = {"deci"};
constexpr std::string_view kNemotronArchitectures[] = {"NemotronForCausalLM"};
constexpr std::string_view kNemotronGguf[] = {"nemotron"};
constexpr std::string_view kGemma2Gguf[] = {"gemma2"};
constexpr std::string_view kGemma3Gguf[] = {"gemma3"};
constexpr std::string_view kPhi3Gguf[] = {"phi3"};
constexpr std::string_view kOlmo2Gguf[] = {"olmo2"};
constexpr std::string_view kSmolLm3Gguf[] = {"smollm3"};
constexpr std::string_view kGraniteGguf[] = {"granite"};
constexpr std::string_view kStarcoder2Gguf[] = {"starcoder2"};
constexpr std::string_view kGptNeoxGguf[] = {"gptneox"};
constexpr std::string_view kFalconGguf[] = {"falcon"};
constexpr std::string_view kGlmGguf[] = {"chatglm"};
constexpr std::string_view kGlm4Gguf[] = {"glm4"};
// The converter splits InternLM 2's fused rows and permutes q and k as it does Llama's.
constexpr std::string_view kLlamaGguf[] = {"llama", "internlm2"};
constexpr std::string_view kQwen2Gguf[] = {"qwen2"};
constexpr std::string_view kQwen3Gguf[] = {"qwen3"};
constexpr std::string_view kGpt2Gguf[] = {"gpt2"};
constexpr std::string_view kMinistralArchitectures[] = {"MinistralForCausalLM"};
constexpr std::string_view kGemma2Architectures[] = {"Gemma2ForCausalLM"};
constexpr std::string_view kGemma3Architectures[] = {"Gemma3ForCausalLM"};
constexpr std::string_view kPhi3Architectures[] = {"Phi3ForCausalLM"};
constexpr std::string_view kOlmo2Architectures[] = {"Olmo2ForCausalLM"};
constexpr std::string_view kSmolLm3Architectures[] = {"SmolLM3ForCausalLM"};
constexpr std::string_view kGraniteArchitectures[] = {"GraniteForCausalLM"};
constexpr std::string_view kStarcoder2Architectures[] = {"Starcoder2ForCausalLM"};
constexpr std::string_view kGptNeoxArchitectures[] = {"GPTNeoXForCausalLM"};
constexpr std::string_view kFalconArchitectures[] = {"FalconForCausalLM"};
constexpr std::string_view kGlmArchitectures[] = {"GlmForCausalLM"};
constexpr std::string_view kGlm4Architectures[] = {"Glm4ForCausalLM"};

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
                                .names = &LlamaNames(),
                                .gguf_renormalise = true};  // Mixtral's files are "llama"
  return family;
}

Family Mistral() {
  Family mistral = Llama();  // its GGUF files are of architecture "llama"
  mistral.name = mistral.model_type = "mistral";
  mistral.architectures = kMistralArchitectures;
  mistral.gguf_architectures = {};
  mistral.qkv_bias = mistral.out_bias = mistral.mlp_bias = Flag::Never();
  mistral.window = WindowRule::kAllLayers;
  mistral.sliding_window = 4096;
  return mistral;
}

Family Qwen2() {
  Family qwen2 = Llama();
  qwen2.name = qwen2.model_type = "qwen2";
  qwen2.architectures = kQwen2Architectures;
  qwen2.gguf_architectures = kQwen2Gguf;
  qwen2.gguf_rope_layout = RopeLayout::kHalf;
  qwen2.qkv_bias = Flag::Always();
  qwen2.out_bias = qwen2.mlp_bias = Flag::Never();
  qwen2.window = WindowRule::kUpperLayers;
  return qwen2;
}

Family Qwen3() {
  Family qwen3 = Qwen2();
  qwen3.name = qwen3.model_type = "qwen3";
  qwen3.architectures = kQwen3Architectures;
  qwen3.gguf_architectures = kQwen3Gguf;
  qwen3.qkv_bias = qwen3.out_bias = Flag::Key("attention_bias", false);
  qwen3.qk_norm = QkNorm::kPerHead;
  qwen3.head_dim = 128;
  return qwen3;
}

Family Deci() {
  Family deci = Llama();
  deci.name = "decilm";
  deci.model_type = "nemotron-nas";
  deci.architectures = kDeciArchitectures;
  deci.gguf_architectures = kDeciGguf;
  deci.refine_gguf = RefineGgufDeci;
  deci.inter_per_hidden = 4;  // a placeholder: each layer gives its own width
  deci.names = &DeciNames();
  deci.refine = RefineDeci;
  return deci;
}

Family Nemotron() {
  Family nemotron = Llama();
  nemotron.name = nemotron.model_type = "nemotron";
  nemotron.architectures = kNemotronArchitectures;
  nemotron.gguf_architectures = kNemotronGguf;
  nemotron.gguf_rope_layout = RopeLayout::kHalf;
  nemotron.keys.norm_eps = "norm_eps";
  nemotron.activation = "relu2";
  nemotron.norm_eps = 1e-5;
  nemotron.rotary_part = 0.5;
  nemotron.norm = NormKind::kLayer;
  nemotron.norm_weight_offset = 1.0f;
  nemotron.gated = false;
  nemotron.names = &NemotronNames();
  return nemotron;
}

Family Gpt2() {
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
  return gpt2;
}

Family Ministral() {
  Family ministral = Mistral();
  ministral.name = ministral.model_type = "ministral";
  ministral.architectures = kMinistralArchitectures;
  ministral.window = WindowRule::kPattern;
  return ministral;
}

Family Gemma2() {
  Family gemma = Llama();
  gemma.name = gemma.model_type = "gemma2";
  gemma.architectures = kGemma2Architectures;
  gemma.refine_gguf = RefineGgufGemma;
  gemma.gguf_rope_layout = RopeLayout::kHalf;
  gemma.gguf_architectures = kGemma2Gguf;
  gemma.keys.activation = "hidden_activation";
  gemma.activation = "gelu_pytorch_tanh";
  gemma.tied_embeddings = true;
  gemma.head_dim = 256;
  gemma.norm_weight_offset = 1.0f;
  gemma.post_norm = true;
  gemma.mlp_bias = Flag::Never();
  gemma.window = WindowRule::kPattern;
  gemma.sliding_window = 4096;
  gemma.window_pattern = 2;
  gemma.names = &GemmaNames();
  gemma.refine = RefineGemma2;
  return gemma;
}

Family Gemma3() {
  Family gemma = Gemma2();
  gemma.name = "gemma3";
  gemma.model_type = "gemma3_text";
  gemma.architectures = kGemma3Architectures;
  gemma.gguf_architectures = kGemma3Gguf;
  gemma.n_heads = 8;  // the text_config of a model with images leaves it out
  gemma.n_kv_heads = 4;
  gemma.vocab = 262208;
  gemma.max_context = 131072;
  gemma.qk_norm = QkNorm::kPerHead;
  gemma.window_pattern = 6;
  gemma.rope_theta = 1e6;
  gemma.window_rope = WindowRope::kOwnTheta;
  gemma.refine = RefineGemma3;
  return gemma;
}

Family Phi3() {
  Family phi3 = Mistral();
  phi3.name = phi3.model_type = "phi3";
  phi3.architectures = kPhi3Architectures;
  phi3.gguf_rope_layout = RopeLayout::kHalf;
  phi3.gguf_architectures = kPhi3Gguf;
  phi3.norm_eps = 1e-5;
  phi3.sliding_window = 0;
  phi3.names = &Phi3Names();
  return phi3;
}

Family Olmo2() {
  Family olmo2 = Llama();
  olmo2.name = olmo2.model_type = "olmo2";
  olmo2.architectures = kOlmo2Architectures;
  olmo2.gguf_rope_layout = RopeLayout::kHalf;
  olmo2.gguf_architectures = kOlmo2Gguf;
  olmo2.norm_eps = 1e-5;
  olmo2.pre_norm = false;
  olmo2.post_norm = true;
  olmo2.qk_norm = QkNorm::kFullWidth;
  olmo2.mlp_bias = Flag::Never();
  olmo2.window_rope = WindowRope::kUnscaled;  // of OLMo 3 in GGUF, which has this architecture
  olmo2.names = &Olmo2Names();
  return olmo2;
}

Family SmolLm3() {
  Family smollm3 = Llama();
  smollm3.name = smollm3.model_type = "smollm3";
  smollm3.architectures = kSmolLm3Architectures;
  smollm3.refine_gguf = RefineGgufSmolLm3;
  smollm3.gguf_architectures = kSmolLm3Gguf;
  smollm3.tied_embeddings = true;
  smollm3.rope_theta = 2e6;
  smollm3.refine = RefineSmolLm3;
  return smollm3;
}

Family Granite() {
  Family granite = Llama();
  granite.name = granite.model_type = "granite";
  granite.architectures = kGraniteArchitectures;
  granite.refine_gguf = RefineGgufGranite;
  granite.gguf_architectures = kGraniteGguf;
  granite.refine = RefineGranite;
  return granite;
}

Family Starcoder2() {
  Family starcoder2 = Mistral();
  starcoder2.name = starcoder2.model_type = "starcoder2";
  starcoder2.architectures = kStarcoder2Architectures;
  starcoder2.gguf_rope_layout = RopeLayout::kHalf;
  starcoder2.gguf_architectures = kStarcoder2Gguf;
  starcoder2.keys.norm_eps = "norm_epsilon";
  starcoder2.activation = "gelu_pytorch_tanh";
  starcoder2.norm_eps = 1e-5;
  starcoder2.tied_embeddings = true;
  starcoder2.sliding_window = 0;
  starcoder2.norm = NormKind::kLayer;
  starcoder2.gated = false;
  starcoder2.qkv_bias = starcoder2.out_bias = starcoder2.mlp_bias = Flag::Key("use_bias", true);
  starcoder2.names = &Starcoder2Names();
  return starcoder2;
}

Family GptNeox() {
  Family neox;
  neox.name = neox.model_type = "gpt_neox";
  neox.architectures = kGptNeoxArchitectures;
  neox.refine_gguf = RefineGgufGptNeox;
  neox.gguf_architectures = kGptNeoxGguf;
  neox.keys.n_kv_heads = neox.keys.head_dim = "";
  neox.keys.norm_eps = "layer_norm_eps";
  neox.keys.rope_theta = "rotary_emb_base";
  neox.keys.rotary_part = "rotary_pct";
  neox.activation = "gelu";
  neox.norm_eps = 1e-5;
  neox.rotary_part = 0.25;
  neox.norm = NormKind::kLayer;
  neox.gated = false;
  neox.qkv_bias = neox.out_bias = Flag::Key("attention_bias", true);
  neox.mlp_bias = Flag::Always();
  neox.prefix = "gpt_neox.";
  neox.names = &GptNeoxNames();
  neox.refine = RefineGptNeox;
  return neox;
}

Family Falcon() {
  Family falcon;
  falcon.name = falcon.model_type = "falcon";
  falcon.architectures = kFalconArchitectures;
  falcon.refine_gguf = RefineGgufFalcon;
  falcon.gguf_architectures = kFalconGguf;
  falcon.keys.n_kv_heads = falcon.keys.head_dim = "";  // see RefineFalcon
  falcon.keys.inter = "ffn_hidden_size";
  falcon.keys.norm_eps = "layer_norm_epsilon";
  falcon.keys.activation = "activation";
  falcon.activation = "gelu";
  falcon.norm_eps = 1e-5;
  falcon.tied_embeddings = true;
  falcon.inter_per_hidden = 4;
  falcon.max_context = 2048;
  falcon.norm = NormKind::kLayer;
  falcon.gated = false;
  falcon.qkv_bias = falcon.out_bias = falcon.mlp_bias = Flag::Key("bias", false);
  falcon.prefix = "transformer.";
  falcon.names = &FalconNames();
  falcon.refine = RefineFalcon;
  return falcon;
}

Family Glm() {
  Family glm = Llama();
  glm.name = glm.model_type = "glm";
  glm.architectures = kGlmArchitectures;
  glm.gguf_architectures = kGlmGguf;
  glm.norm_eps = 1.5625e-7;
  glm.head_dim = 128;
  glm.rotary_part = 0.5;
  glm.rope_layout = RopeLayout::kInterleaved;
  glm.qkv_bias = Flag::Key("attention_bias", true);
  glm.out_bias = glm.mlp_bias = Flag::Never();
  glm.names = &GlmNames();
  return glm;
}

Family Glm4() {
  Family glm4 = Glm();
  glm4.name = glm4.model_type = "glm4";
  glm4.architectures = kGlm4Architectures;
  glm4.gguf_architectures = kGlm4Gguf;
  glm4.post_norm = true;
  glm4.names = &Glm4Names();
  glm4.refine_gguf = RefineGgufGlm4;
  return glm4;
}

}  // namespace

std::span<const Family> FamilyTable() {
  static const std::vector<Family> table = [] {
    const MoeRows moe = MakeMoeRows(Llama(), Mistral(), Qwen2());
    std::vector<Family> rows = {
        Llama(),         Mistral(),       Ministral(),   moe.mixtral, Qwen2(),
        moe.qwen2_moe,   Qwen3(),         moe.qwen3_moe, Gemma2(),    Gemma3(),
        Phi3(),          Olmo2(),         SmolLm3(),     Granite(),   moe.gpt_oss,
        moe.deepseek_v2, moe.deepseek_v3, Deci(),        Nemotron(),  Gpt2(),
        GptNeox(),       Starcoder2(),    Falcon(),      Glm(),       Glm4()};
    const auto add = [&rows](const std::vector<Family>& more) {
      rows.insert(rows.end(), more.begin(), more.end());
    };
    add(RecentRows({.llama = Llama(),
                    .mistral = Mistral(),
                    .mixtral = moe.mixtral,
                    .olmo2 = Olmo2(),
                    .gemma2 = Gemma2(),
                    .granite = Granite(),
                    .qwen3_moe = moe.qwen3_moe,
                    .deepseek_v3 = moe.deepseek_v3}));
    rows.push_back(PhiRow(GptNeox()));
    add(HybridRows(Llama()));
    add(RecurrentRows({.qwen3 = Qwen3(), .qwen2_moe = moe.qwen2_moe}));
    add(VisionRows({.qwen2 = Qwen2(), .qwen3 = Qwen3(), .qwen3_moe = moe.qwen3_moe}));
    add(MambaRows(Llama()));
    add(SelectiveRows(Llama()));
    rows.push_back(SambaYRow(Llama()));
    rows.push_back(RwkvRow(Llama()));
    rows.push_back(QwenRwkvRow(Llama()));
    add(Gemma3nRows(Gemma3()));
    add(Gemma4Rows(Gemma3()));
    add(Llama4Rows(Llama()));
    add(NewerRows(rows));
    add(SparseRows(rows));
    const std::vector<Family> encoders = EncoderRows(Gemma3(), Llama());
    add(encoders);
    add(RotaryEncoderRows(encoders.front()));
    add(MoreEncoderRows(encoders));
    return rows;
  }();
  return table;
}

}  // namespace heddle::engine
