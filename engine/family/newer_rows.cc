#include "engine/family/newer_rows.h"

#include "engine/family/family_names.h"
#include "engine/family/family_refine.h"
#include "engine/family/gguf_refine.h"
#include "engine/family/newer_refine.h"
#include "engine/family/row_variants.h"

namespace heddle::engine {
namespace {

constexpr std::string_view kInternLm3Architectures[] = {"InternLM3ForCausalLM"};
constexpr std::string_view kIQuestArchitectures[] = {"IQuestCoderForCausalLM"};
constexpr std::string_view kJais2Architectures[] = {"Jais2ForCausalLM"};
constexpr std::string_view kJais2Gguf[] = {"jais2"};
constexpr std::string_view kHeliumArchitectures[] = {"HeliumForCausalLM"};
constexpr std::string_view kCwmArchitectures[] = {"CwmForCausalLM"};
constexpr std::string_view kYoutuArchitectures[] = {"YoutuForCausalLM"};
constexpr std::string_view kVaultGemmaArchitectures[] = {"VaultGemmaForCausalLM"};
constexpr std::string_view kHyperClovaArchitectures[] = {"HyperCLOVAXForCausalLM"};
constexpr std::string_view kGraniteSwaArchitectures[] = {"GraniteSWAForCausalLM"};
constexpr std::string_view kGraniteSwaGguf[] = {"granite_swa"};
constexpr std::string_view kMimoArchitectures[] = {"MiMoForCausalLM"};
constexpr std::string_view kMiniCpmArchitectures[] = {"MiniCPMForCausalLM"};
constexpr std::string_view kMiniCpmGguf[] = {"minicpm"};
constexpr std::string_view kExaoneArchitectures[] = {"ExaoneForCausalLM"};
constexpr std::string_view kExaoneGguf[] = {"exaone"};
constexpr std::string_view kExaoneMoeArchitectures[] = {"ExaoneMoeForCausalLM",
                                                        "ExaoneMoEForCausalLM"};
constexpr std::string_view kExaoneMoeGguf[] = {"exaone-moe"};
constexpr std::string_view kSolarArchitectures[] = {"SolarOpenForCausalLM"};
constexpr std::string_view kHyV3Architectures[] = {"HYV3ForCausalLM"};
constexpr std::string_view kHyV3Gguf[] = {"hy_v3"};
constexpr std::string_view kMellumArchitectures[] = {"MellumForCausalLM"};
constexpr std::string_view kMellumGguf[] = {"mellum"};
constexpr std::string_view kStableLmArchitectures[] = {"StableLmForCausalLM"};
constexpr std::string_view kStableLmGguf[] = {"stablelm"};
constexpr std::string_view kApertusArchitectures[] = {"ApertusForCausalLM"};
constexpr std::string_view kApertusGguf[] = {"apertus"};
constexpr std::string_view kGlm4vArchitectures[] = {"Glm4vForConditionalGeneration"};
constexpr std::string_view kGlm4vMoeArchitectures[] = {"Glm4vMoeForConditionalGeneration"};

const NameMap& VaultGemmaNames() {
  static const NameMap names = [] {
    NameMap vault = LlamaNames();
    vault.layer.mlp_norm = "layers.{}.pre_feedforward_layernorm.weight";
    return vault;
  }();
  return names;
}

const NameMap& HyperClovaNames() {
  static const NameMap names = [] {
    NameMap hyper = LlamaNames();
    hyper.layer.attn_post_norm = "layers.{}.post_norm1.weight";
    hyper.layer.mlp_post_norm = "layers.{}.post_norm2.weight";
    return hyper;
  }();
  return names;
}

const NameMap& SinkNames() {
  static const NameMap names = [] {
    NameMap sinks = LlamaNames();
    sinks.layer.sinks = "layers.{}.self_attn.sinks";
    return sinks;
  }();
  return names;
}

const NameMap& ExaoneNames() {
  static const NameMap names = {.embed = "wte.weight",
                                .final_norm = "ln_f.weight",
                                .lm_head = "lm_head.weight",
                                .layer = {.attn_norm = "h.{}.ln_1.weight",
                                          .q = "h.{}.attn.attention.q_proj.weight",
                                          .k = "h.{}.attn.attention.k_proj.weight",
                                          .v = "h.{}.attn.attention.v_proj.weight",
                                          .o = "h.{}.attn.attention.out_proj.weight",
                                          .mlp_norm = "h.{}.ln_2.weight",
                                          .gate = "h.{}.mlp.c_fc_0.weight",
                                          .up = "h.{}.mlp.c_fc_1.weight",
                                          .down = "h.{}.mlp.c_proj.weight"}};
  return names;
}

// Transformers moves the bias into the gate while loading, and back while saving.
const NameMap& ExaoneMoeNames() {
  static const NameMap names = [] {
    NameMap exaone = Glm4MoeNames();
    exaone.layer.choice_bias = "layers.{}.mlp.e_score_correction_bias";
    return exaone;
  }();
  return names;
}

// The names that the published files have; transformers renames them while loading and saving.
const NameMap& HyV3Names() {
  static const NameMap names = [] {
    NameMap hy = Glm4MoeNames();
    LayerNames& layer = hy.layer;
    layer.router = "layers.{}.mlp.router.gate.weight";
    layer.choice_bias = "layers.{}.mlp.expert_bias";
    layer.shared_gate = "layers.{}.mlp.shared_mlp.gate_proj.weight";
    layer.shared_up = "layers.{}.mlp.shared_mlp.up_proj.weight";
    layer.shared_down = "layers.{}.mlp.shared_mlp.down_proj.weight";
    return hy;
  }();
  return names;
}

const NameMap& ApertusNames() {
  static const NameMap names = [] {
    NameMap apertus = LlamaNames();
    LayerNames& layer = apertus.layer;
    layer.attn_norm = "layers.{}.attention_layernorm.weight";
    layer.mlp_norm = "layers.{}.feedforward_layernorm.weight";
    layer.xielu_positive = "layers.{}.mlp.act_fn.alpha_p";
    layer.xielu_negative = "layers.{}.mlp.act_fn.alpha_n";
    layer.xielu_beta = "layers.{}.mlp.act_fn.beta";
    layer.xielu_eps = "layers.{}.mlp.act_fn.eps";
    return apertus;
  }();
  return names;
}

Family InternLm3(const FamilyRows& rows) {
  Family intern = rows.Variant("llama", "internlm3", kInternLm3Architectures);
  intern.norm_eps = 1e-5;
  intern.head_dim = 128;
  intern.n_kv_heads = 2;
  intern.qkv_bias = Flag::Key("qkv_bias", false);
  intern.out_bias = intern.mlp_bias = Flag::Key("bias", false);
  return intern;
}

Family IQuestCoder(const FamilyRows& rows) {
  Family iquest = rows.Variant("llama", "iquestcoder", kIQuestArchitectures);
  iquest.norm_eps = 1e-5;
  iquest.head_dim = 128;
  iquest.n_kv_heads = 8;
  iquest.refine = RefineIQuestCoder;
  return iquest;
}

Family Jais2(const FamilyRows& rows) {
  Family jais = rows.Variant("llama", "jais2", kJais2Architectures, kJais2Gguf);
  jais.keys.norm_eps = "layer_norm_eps";
  jais.norm = NormKind::kLayer;
  jais.norm_eps = 1e-5;
  jais.activation = "relu2";
  jais.gated = false;
  jais.max_context = 8192;
  jais.qkv_bias = jais.out_bias = Flag::Key("attention_bias", true);
  jais.mlp_bias = Flag::Key("mlp_bias", true);
  jais.gguf_rope_layout = RopeLayout::kHalf;
  jais.names = &NemotronNames();
  return jais;
}

Family Helium(const FamilyRows& rows) {
  Family helium = rows.Variant("llama", "helium", kHeliumArchitectures);
  helium.norm_eps = 1e-8;
  helium.n_kv_heads = 20;
  helium.head_dim = 128;
  helium.max_context = 4096;
  helium.rope_theta = 100000.0;
  helium.rope_layout = RopeLayout::kInterleaved;
  helium.out_bias = Flag::Never();
  return helium;
}

Family Cwm(const FamilyRows& rows) {
  Family cwm = rows.Variant("llama", "cwm", kCwmArchitectures);
  cwm.norm_eps = 1e-5;
  cwm.n_kv_heads = 8;
  cwm.head_dim = 128;
  cwm.max_context = 131072;
  cwm.rope_theta = 1e6;
  cwm.qkv_bias = cwm.out_bias = Flag::Never();
  cwm.absent_rope = R"({"rope_type": "llama3", "rope_theta": 1000000.0, "factor": 16.0,
                        "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                        "original_max_position_embeddings": 8192})";
  cwm.window = WindowRule::kPattern;
  cwm.sliding_window = 8192;
  cwm.refine = RefineCwm;
  return cwm;
}

// Files in GGUF are of architecture "deepseek2".
Family Youtu(const FamilyRows& rows) {
  Family youtu = rows.Variant("deepseek_v3", "youtu", kYoutuArchitectures);
  youtu.tied_embeddings = true;
  youtu.max_context = 131072;
  youtu.names = &DeepseekNames();
  youtu.stacked_names = nullptr;
  youtu.refine = RefineYoutu;
  return youtu;
}

Family VaultGemma(const FamilyRows& rows) {
  Family vault = rows.Variant("gemma2", "vaultgemma", kVaultGemmaArchitectures);
  vault.post_norm = false;
  vault.names = &VaultGemmaNames();
  return vault;
}

Family HyperClovaX(const FamilyRows& rows) {
  Family hyper = rows.Variant("granite", "hyperclovax", kHyperClovaArchitectures);
  hyper.names = &HyperClovaNames();
  hyper.refine = RefineHyperClovaX;
  return hyper;
}

Family GraniteSwa(const FamilyRows& rows) {
  Family swa = rows.Variant("granite", "granite_swa", kGraniteSwaArchitectures, kGraniteSwaGguf);
  swa.norm_eps = 1e-5;
  swa.n_kv_heads = 4;
  swa.max_context = 8192;
  swa.tied_embeddings = true;
  swa.window = WindowRule::kPattern;
  swa.sliding_window = 128;
  swa.names = &SinkNames();
  swa.refine = RefineGraniteSwa;
  swa.refine_gguf = RefineGgufGraniteSwa;
  return swa;
}

// Qwen2 with layers behind it that guess ahead (XiaomiMiMo/MiMo-7B), which are left aside.
Family Mimo(const FamilyRows& rows) {
  Family mimo = rows.Variant("qwen2", "mimo", kMimoArchitectures);
  mimo.qkv_bias = Flag::Key("attention_bias", true);
  return mimo;
}

Family MiniCpm(const FamilyRows& rows) {
  Family cpm = rows.Variant("granite", "minicpm", kMiniCpmArchitectures, kMiniCpmGguf);
  cpm.refine = RefineMiniCpm;
  cpm.refine_gguf = RefineGgufMiniCpm;
  cpm.tied_embeddings = true;
  return cpm;
}

Family Exaone(const FamilyRows& rows) {
  Family exaone = rows.Variant("llama", "exaone", kExaoneArchitectures, kExaoneGguf);
  exaone.keys.n_layers = "num_layers";
  exaone.keys.norm_eps = "layer_norm_epsilon";
  exaone.keys.activation = "activation_function";
  exaone.norm_eps = 1e-5;
  exaone.qkv_bias = exaone.out_bias = exaone.mlp_bias = Flag::Never();
  exaone.gguf_rope_layout = RopeLayout::kHalf;
  exaone.prefix = "transformer.";
  exaone.names = &ExaoneNames();
  return exaone;
}

// The attention of EXAONE 4 before whose blocks there are norms, and experts.
Family ExaoneMoe(const FamilyRows& rows) {
  Family exaone = rows.Variant("glm4_moe", "exaone_moe", kExaoneMoeArchitectures, kExaoneMoeGguf);
  exaone.n_kv_heads = 32;
  exaone.max_context = 2048;
  exaone.rotary_part = 1.0;
  exaone.qkv_bias = Flag::Never();
  exaone.window = WindowRule::kPattern;
  exaone.sliding_window = 4096;
  exaone.window_pattern = 4;
  exaone.names = &ExaoneMoeNames();
  exaone.stacked_names = nullptr;
  exaone.refine = RefineExaoneMoe;
  exaone.refine_gguf = RefineGgufExaoneMoe;
  return exaone;
}

// Files in GGUF are of architecture "glm4moe".
Family SolarOpen(const FamilyRows& rows) {
  Family solar = rows.Variant("glm4_moe", "solar_open", kSolarArchitectures);
  solar.n_kv_heads = 8;
  solar.head_dim = 128;
  solar.max_context = 131072;
  solar.rope_theta = 1e6;
  solar.rotary_part = 1.0;
  solar.inter_per_hidden = 4;  // config.json has none, and no layer has such an MLP
  solar.qk_norm = QkNorm::kNone;
  solar.refine = RefineSolarOpen;
  return solar;
}

Family HyV3(const FamilyRows& rows) {
  Family hy = rows.Variant("glm4_moe", "hy_v3", kHyV3Architectures, kHyV3Gguf);
  hy.n_kv_heads = 8;
  hy.head_dim = 128;
  hy.max_context = 131072;
  hy.rope_theta = 11158840.0;
  hy.rotary_part = 1.0;
  hy.qkv_bias = hy.out_bias = Flag::Key("attention_bias", false);
  hy.names = &HyV3Names();
  hy.stacked_names = nullptr;
  hy.refine = RefineHyV3;
  hy.refine_gguf = RefineGgufHyV3;
  return hy;
}

Family Mellum(const FamilyRows& rows) {
  Family mellum = rows.Variant("qwen3_moe", "mellum", kMellumArchitectures, kMellumGguf);
  mellum.max_context = 131072;
  mellum.rope_theta = 500000.0;
  mellum.window = WindowRule::kPattern;
  mellum.window_rope = WindowRope::kOwnTheta;
  mellum.sliding_window = 1024;
  mellum.window_pattern = 4;
  mellum.inter_per_hidden = 4;  // the refinement reads the width of dense layers
  mellum.refine = RefineMellum;
  mellum.refine_gguf = RefineGgufMellum;
  mellum.gguf_renormalise = true;
  return mellum;
}

Family StableLm(const FamilyRows& rows) {
  Family stable = rows.Variant("llama", "stablelm", kStableLmArchitectures, kStableLmGguf);
  stable.keys.norm_eps = "layer_norm_eps";
  stable.norm = NormKind::kLayer;
  stable.norm_eps = 1e-5;
  stable.max_context = 4096;
  stable.rotary_part = 0.25;
  stable.qkv_bias = Flag::Key("use_qkv_bias", false);
  stable.out_bias = stable.mlp_bias = Flag::Never();
  stable.gguf_rope_layout = RopeLayout::kHalf;
  stable.names = &NemotronNames();
  stable.refine = RefineStableLm;
  stable.refine_gguf = RefineGgufStableLm;
  return stable;
}

Family Apertus(const FamilyRows& rows) {
  Family apertus = rows.Variant("llama", "apertus", kApertusArchitectures, kApertusGguf);
  apertus.norm_eps = 1e-5;
  apertus.keys.activation = {};  // see RefineApertus
  apertus.gated = false;
  apertus.max_context = 65536;
  apertus.rope_theta = 12e6;
  apertus.absent_rope = R"({"rope_type": "llama3", "rope_theta": 12000000.0, "factor": 8.0,
                            "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                            "original_max_position_embeddings": 8192})";
  apertus.mlp_bias = Flag::Never();
  apertus.qk_norm = QkNorm::kPerHead;
  apertus.gguf_rope_layout = RopeLayout::kHalf;
  apertus.names = &ApertusNames();
  apertus.refine = RefineApertus;
  apertus.refine_gguf = RefineGgufApertus;
  return apertus;
}

// The text of GLM-4.1V and of GLM-4.5V and 4.6V. For text alone all sections of RoPE are alike.
Family Glm4v(const FamilyRows& rows) {
  Family glm = rows.Variant("glm4", "glm4v", kGlm4vArchitectures);
  glm.model_type = "glm4v_text";
  glm.norm_eps = 1e-5;
  glm.n_kv_heads = 2;
  glm.head_dim = 0;
  glm.max_context = 32768;
  return glm;
}

Family Glm4vMoe(const FamilyRows& rows) {
  Family glm = rows.Variant("glm4_moe", "glm4v_moe", kGlm4vMoeArchitectures);
  glm.model_type = "glm4v_moe_text";
  glm.qkv_bias = Flag::Key("attention_bias", true);
  glm.n_kv_heads = 8;
  glm.max_context = 65536;
  return glm;
}

}  // namespace

std::vector<Family> NewerRows(std::span<const Family> rows) {
  const FamilyRows all(rows);
  return {InternLm3(all), IQuestCoder(all), Jais2(all),       Helium(all),     Cwm(all),
          Youtu(all),     VaultGemma(all),  HyperClovaX(all), GraniteSwa(all), Mimo(all),
          MiniCpm(all),   Exaone(all),      ExaoneMoe(all),   SolarOpen(all),  HyV3(all),
          Mellum(all),    StableLm(all),    Apertus(all),     Glm4v(all),      Glm4vMoe(all)};
}

}  // namespace heddle::engine
