#include "engine/family/recent_rows.h"

#include "engine/family/family_names.h"
#include "engine/family/family_refine.h"
#include "engine/family/gguf_refine.h"
#include "engine/family/recent_refine.h"

namespace heddle::engine {
namespace {

constexpr std::string_view kGemmaArchitectures[] = {"GemmaForCausalLM"};
constexpr std::string_view kGemmaGguf[] = {"gemma"};
constexpr std::string_view kOlmo3Architectures[] = {"Olmo3ForCausalLM"};
constexpr std::string_view kSeedArchitectures[] = {"SeedOssForCausalLM"};
constexpr std::string_view kSeedGguf[] = {"seed_oss"};
constexpr std::string_view kErnieArchitectures[] = {"Ernie4_5ForCausalLM"};
constexpr std::string_view kErnieGguf[] = {"ernie4_5"};
constexpr std::string_view kArceeArchitectures[] = {"ArceeForCausalLM"};
constexpr std::string_view kArceeGguf[] = {"arcee"};
constexpr std::string_view kCohereArchitectures[] = {"CohereForCausalLM"};
constexpr std::string_view kCohereGguf[] = {"command-r"};
constexpr std::string_view kCohere2Architectures[] = {"Cohere2ForCausalLM"};
constexpr std::string_view kCohere2Gguf[] = {"cohere2"};
constexpr std::string_view kExaone4Architectures[] = {"Exaone4ForCausalLM"};
constexpr std::string_view kExaone4Gguf[] = {"exaone4"};
constexpr std::string_view kOlmoeArchitectures[] = {"OlmoeForCausalLM"};
constexpr std::string_view kOlmoeGguf[] = {"olmoe"};
constexpr std::string_view kGlmMoeArchitectures[] = {"Glm4MoeForCausalLM"};
constexpr std::string_view kGlmMoeGguf[] = {"glm4moe"};
constexpr std::string_view kGlmLiteArchitectures[] = {"Glm4MoeLiteForCausalLM"};
constexpr std::string_view kDots1Architectures[] = {"Dots1ForCausalLM"};
constexpr std::string_view kDots1Gguf[] = {"dots1"};
constexpr std::string_view kErnieMoeArchitectures[] = {"Ernie4_5_MoeForCausalLM"};
constexpr std::string_view kErnieMoeGguf[] = {"ernie4_5-moe"};
constexpr std::string_view kGraniteMoeArchitectures[] = {"GraniteMoeForCausalLM"};
constexpr std::string_view kGraniteMoeGguf[] = {"granitemoe"};
constexpr std::string_view kGraniteSharedArchitectures[] = {"GraniteMoeSharedForCausalLM"};
constexpr std::string_view kGraniteHybridArchitectures[] = {"GraniteMoeHybridForCausalLM"};
constexpr std::string_view kGraniteHybridGguf[] = {"granitehybrid"};
constexpr std::string_view kMiniMaxArchitectures[] = {"MiniMaxM2ForCausalLM"};
constexpr std::string_view kMiniMaxGguf[] = {"minimax-m2"};
constexpr std::string_view kHunYuanArchitectures[] = {"HunYuanDenseV1ForCausalLM"};
constexpr std::string_view kHunYuanGguf[] = {"hunyuan-dense"};
constexpr std::string_view kHunYuanMoeArchitectures[] = {"HunYuanMoEV1ForCausalLM"};
constexpr std::string_view kHunYuanMoeGguf[] = {"hunyuan-moe"};
constexpr std::string_view kMinistral3Architectures[] = {"Ministral3ForCausalLM"};
constexpr std::string_view kMinistral3Gguf[] = {"mistral3"};

Family Named(Family row, std::string_view name, std::span<const std::string_view> architectures,
             std::span<const std::string_view> gguf) {
  row.name = row.model_type = name;
  row.architectures = architectures;
  row.gguf_architectures = gguf;
  return row;
}

Family Gemma(const BaseRows& base) {
  Family gemma = Named(base.llama, "gemma", kGemmaArchitectures, kGemmaGguf);
  gemma.activation = "gelu_pytorch_tanh";
  gemma.tied_embeddings = true;
  gemma.head_dim = 256;
  gemma.norm_weight_offset = 1.0f;
  gemma.mlp_bias = Flag::Never();
  gemma.gguf_rope_layout = RopeLayout::kHalf;
  gemma.refine = RefineGemma1;
  gemma.refine_gguf = RefineGgufGemma1;
  return gemma;
}

// Files in GGUF are of architecture "olmo2".
Family Olmo3(const BaseRows& base) {
  Family olmo3 = Named(base.olmo2, "olmo3", kOlmo3Architectures, {});
  olmo3.rope_theta = 500000.0;
  olmo3.window = WindowRule::kPattern;
  olmo3.sliding_window = 4096;
  olmo3.window_pattern = 4;
  olmo3.window_rope = WindowRope::kUnscaled;
  return olmo3;
}

Family SeedOss(const BaseRows& base) {
  Family seed = Named(base.llama, "seed_oss", kSeedArchitectures, kSeedGguf);
  seed.head_dim = 128;
  seed.n_kv_heads = 8;
  seed.qkv_bias = Flag::Key("attention_bias", true);
  seed.out_bias = Flag::Key("attention_out_bias", false);
  seed.gguf_rope_layout = RopeLayout::kHalf;
  seed.refine_gguf = RefineGgufPostAttentionNorm;
  return seed;
}

Family Ernie45(const BaseRows& base) {
  Family ernie = Named(base.llama, "ernie4_5", kErnieArchitectures, kErnieGguf);
  ernie.norm_eps = 1e-5;
  ernie.n_kv_heads = 2;
  ernie.head_dim = 128;
  ernie.rope_theta = 500000.0;
  ernie.tied_embeddings = true;
  ernie.qkv_bias = ernie.out_bias = ernie.mlp_bias = Flag::Key("use_bias", false);
  ernie.rope_layout = RopeLayout::kInterleaved;
  return ernie;
}

Family Arcee(const BaseRows& base) {
  Family arcee = Named(base.llama, "arcee", kArceeArchitectures, kArceeGguf);
  arcee.activation = "relu2";
  arcee.norm_eps = 1e-5;
  arcee.gated = false;
  return arcee;
}

Family Cohere(const BaseRows& base) {
  Family cohere = Named(base.llama, "cohere", kCohereArchitectures, kCohereGguf);
  cohere.keys.norm_eps = "layer_norm_eps";
  cohere.norm = NormKind::kLayer;
  cohere.norm_eps = 1e-5;
  cohere.rope_theta = 500000.0;
  cohere.rope_layout = RopeLayout::kInterleaved;
  cohere.tied_embeddings = true;
  cohere.mlp_bias = Flag::Never();
  cohere.names = &CohereNames();
  cohere.refine = RefineCohere;
  cohere.refine_gguf = RefineGgufCohere;
  return cohere;
}

Family Cohere2(const BaseRows& base) {
  Family cohere = Named(Cohere(base), "cohere2", kCohere2Architectures, kCohere2Gguf);
  cohere.rope_theta = 10000.0;
  cohere.window = WindowRule::kPattern;
  cohere.sliding_window = 4096;
  cohere.window_pattern = 4;
  cohere.refine = RefineCohere2;
  cohere.refine_gguf = RefineGgufCohere2;
  return cohere;
}

Family Exaone4(const BaseRows& base) {
  Family exaone = Named(base.olmo2, "exaone4", kExaone4Architectures, kExaone4Gguf);
  exaone.n_kv_heads = 32;
  exaone.qkv_bias = exaone.out_bias = Flag::Never();
  exaone.qk_norm = QkNorm::kPerHead;
  exaone.window = WindowRule::kPattern;
  exaone.sliding_window = 4096;
  exaone.window_pattern = 4;
  exaone.refine = RefineExaone4;
  exaone.refine_gguf = RefineGgufExaone4;
  return exaone;
}

Family Olmoe(const BaseRows& base) {
  Family olmoe = Named(base.llama, "olmoe", kOlmoeArchitectures, kOlmoeGguf);
  olmoe.norm_eps = 1e-5;
  olmoe.mlp_bias = Flag::Never();
  olmoe.qk_norm = QkNorm::kFullWidth;
  olmoe.gguf_rope_layout = RopeLayout::kHalf;
  olmoe.gguf_renormalise = false;
  olmoe.names = base.qwen3_moe.names;
  olmoe.stacked_names = base.qwen3_moe.stacked_names;
  olmoe.refine = RefineOlmoe;
  olmoe.refine_gguf = RefineGgufOlmoe;
  return olmoe;
}

Family Glm4Moe(const BaseRows& base) {
  Family glm = Named(base.llama, "glm4_moe", kGlmMoeArchitectures, kGlmMoeGguf);
  glm.norm_eps = 1e-5;
  glm.rotary_part = 0.5;
  glm.out_bias = glm.mlp_bias = Flag::Never();
  glm.qk_norm = QkNorm::kPerHead;  // unless use_qk_norm is false
  glm.gguf_rope_layout = RopeLayout::kHalf;
  glm.names = &Glm4MoeNames();
  glm.stacked_names = &Glm4MoeStackedNames();
  glm.refine = RefineGlm4Moe;
  glm.refine_gguf = RefineGgufGlm4Moe;
  return glm;
}

// Latent attention with GLM's experts. Files in GGUF are of architecture "deepseek2".
Family Glm4MoeLite(const BaseRows& base) {
  Family lite = Named(base.deepseek_v3, "glm4_moe_lite", kGlmLiteArchitectures, {});
  lite.norm_eps = 1e-5;
  lite.n_kv_heads = 0;
  lite.max_context = 202752;
  lite.refine = RefineGlm4MoeLite;
  return lite;
}

Family Dots1(const BaseRows& base) {
  Family dots = Named(Glm4Moe(base), "dots1", kDots1Architectures, kDots1Gguf);
  dots.norm_eps = 1e-6;
  dots.rotary_part = 1.0;
  dots.out_bias = Flag::Key("attention_bias", false);
  dots.window = WindowRule::kPattern;  // by layer_types alone
  dots.refine = RefineDots1;
  dots.refine_gguf = nullptr;
  return dots;
}

Family Ernie45Moe(const BaseRows& base) {
  Family ernie = Named(Ernie45(base), "ernie4_5_moe", kErnieMoeArchitectures, kErnieMoeGguf);
  ernie.n_kv_heads = 4;
  ernie.head_dim = 0;
  ernie.gguf_renormalise = true;
  ernie.names = &ErnieMoeNames();
  ernie.stacked_names = &ErnieMoeStackedNames();
  ernie.refine = RefineErnie45Moe;
  return ernie;
}

Family GraniteMoe(const BaseRows& base) {
  Family granite = Named(base.granite, "granitemoe", kGraniteMoeArchitectures, kGraniteMoeGguf);
  granite.mlp_bias = Flag::Never();
  granite.gguf_renormalise = true;
  granite.names = &GraniteMoeNames();
  granite.refine = RefineGraniteMoe;
  return granite;
}

// Files in GGUF are of architecture "granitemoe".
Family GraniteMoeShared(const BaseRows& base) {
  Family granite = Named(GraniteMoe(base), "granitemoeshared", kGraniteSharedArchitectures, {});
  granite.refine = RefineGraniteMoeShared;
  return granite;
}

// Files in GGUF of models without recurrent layers are of other architectures.
Family GraniteMoeHybrid(const BaseRows& base) {
  Family granite =
      Named(GraniteMoe(base), "granitemoehybrid", kGraniteHybridArchitectures, kGraniteHybridGguf);
  granite.refine = RefineGraniteMoeHybrid;
  granite.refine_gguf = RefineGgufGraniteHybrid;
  return granite;
}

Family MiniMaxM2(const BaseRows& base) {
  Family minimax = Named(base.llama, "minimax_m2", kMiniMaxArchitectures, kMiniMaxGguf);
  minimax.n_kv_heads = 8;
  minimax.head_dim = 128;
  minimax.rope_theta = 5e6;
  minimax.qkv_bias = minimax.out_bias = minimax.mlp_bias = Flag::Never();
  minimax.qk_norm = QkNorm::kFullWidth;
  minimax.gguf_rope_layout = RopeLayout::kHalf;
  minimax.names = &MiniMaxM2Names();
  minimax.stacked_names = nullptr;
  minimax.refine = RefineMiniMaxM2;
  return minimax;
}

Family HunYuan(const BaseRows& base) {
  Family hunyuan = Named(base.llama, "hunyuan_v1_dense", kHunYuanArchitectures, kHunYuanGguf);
  hunyuan.norm_eps = 1e-5;
  hunyuan.max_context = 2048;
  hunyuan.mlp_bias = Flag::Never();
  hunyuan.qk_norm = QkNorm::kPerHead;
  hunyuan.gguf_rope_layout = RopeLayout::kHalf;
  hunyuan.names = &HunYuanNames();
  hunyuan.refine = RefineHunYuan;
  hunyuan.refine_gguf = RefineGgufHunYuan;
  return hunyuan;
}

Family HunYuanMoe(const BaseRows& base) {
  Family moe = HunYuan(base);
  moe.name = moe.model_type = "hunyuan_v1_moe";
  moe.architectures = kHunYuanMoeArchitectures;
  moe.gguf_architectures = kHunYuanMoeGguf;
  moe.gguf_renormalise = true;
  moe.names = &HunYuanMoeNames();
  moe.stacked_names = &HunYuanMoeStackedNames();
  moe.refine = RefineHunYuanMoe;
  return moe;
}

Family Ministral3(const BaseRows& base) {
  Family ministral = Named(base.mistral, "ministral3", kMinistral3Architectures, kMinistral3Gguf);
  ministral.norm_eps = 1e-5;
  ministral.n_kv_heads = 8;
  ministral.head_dim = 128;
  ministral.sliding_window = 0;
  ministral.absent_rope = R"({"rope_type": "yarn", "rope_theta": 1000000.0, "factor": 16.0,
                              "original_max_position_embeddings": 16384, "mscale": 1.0,
                              "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1})";
  ministral.refine = RefineMinistral3;
  ministral.refine_gguf = RefineGgufMistral3;
  return ministral;
}

}  // namespace

std::vector<Family> RecentRows(const BaseRows& base) {
  return {Gemma(base),      Olmo3(base),      SeedOss(base),          Ernie45(base),
          Arcee(base),      Cohere(base),     Cohere2(base),          Exaone4(base),
          Olmoe(base),      Glm4Moe(base),    Glm4MoeLite(base),      Dots1(base),
          Ernie45Moe(base), GraniteMoe(base), GraniteMoeShared(base), GraniteMoeHybrid(base),
          MiniMaxM2(base),  HunYuan(base),    HunYuanMoe(base),       Ministral3(base)};
}

}  // namespace heddle::engine
