#include "engine/family/moe_rows.h"

#include "engine/family/family_names.h"
#include "engine/family/family_refine.h"
#include "engine/family/gguf_refine.h"

namespace heddle::engine {
namespace {

constexpr std::string_view kMixtralArchitectures[] = {"MixtralForCausalLM"};
constexpr std::string_view kQwen2MoeArchitectures[] = {"Qwen2MoeForCausalLM"};
constexpr std::string_view kQwen3MoeArchitectures[] = {"Qwen3MoeForCausalLM"};
constexpr std::string_view kQwen2MoeGguf[] = {"qwen2moe"};
constexpr std::string_view kQwen3MoeGguf[] = {"qwen3moe"};
constexpr std::string_view kDeepseekV2Architectures[] = {"DeepseekV2ForCausalLM"};
constexpr std::string_view kDeepseekV3Architectures[] = {"DeepseekV3ForCausalLM"};
constexpr std::string_view kGptOssArchitectures[] = {"GptOssForCausalLM"};
constexpr std::string_view kDeepseek2Gguf[] = {"deepseek2"};
constexpr std::string_view kGptOssGguf[] = {"gpt-oss"};

// Each is given the row that it is a variant of.
Family Mixtral(Family mixtral) {
  mixtral.name = mixtral.model_type = "mixtral";
  mixtral.architectures = kMixtralArchitectures;
  mixtral.norm_eps = 1e-5;
  mixtral.sliding_window = 0;
  mixtral.rope_theta = 1e6;
  mixtral.names = &MixtralNames();
  mixtral.stacked_names = &MixtralStackedNames();
  mixtral.refine = RefineMixtral;
  return mixtral;
}

Family Qwen2Moe(Family qwen2) {
  qwen2.name = qwen2.model_type = "qwen2_moe";
  qwen2.architectures = kQwen2MoeArchitectures;
  qwen2.gguf_architectures = kQwen2MoeGguf;
  qwen2.qkv_bias = Flag::Key("qkv_bias", true);
  qwen2.window = WindowRule::kNone;  // see RefineQwenMoe
  qwen2.names = &QwenMoeNames();
  qwen2.stacked_names = &QwenMoeStackedNames();
  qwen2.gguf_renormalise = false;
  qwen2.refine = RefineQwen2Moe;
  return qwen2;
}

Family Qwen3Moe(Family qwen3) {
  qwen3.name = qwen3.model_type = "qwen3_moe";
  qwen3.architectures = kQwen3MoeArchitectures;
  qwen3.gguf_architectures = kQwen3MoeGguf;
  qwen3.qkv_bias = qwen3.out_bias = Flag::Key("attention_bias", false);
  qwen3.qk_norm = QkNorm::kPerHead;
  qwen3.gguf_renormalise = true;
  qwen3.refine = RefineQwen3Moe;
  return qwen3;
}

Family GptOss(Family oss) {
  oss.name = oss.model_type = "gpt_oss";
  oss.architectures = kGptOssArchitectures;
  oss.gguf_architectures = kGptOssGguf;
  oss.gguf_rope_layout = RopeLayout::kHalf;
  oss.norm_eps = 1e-5;
  oss.head_dim = 64;
  oss.rope_theta = 150000.0;
  oss.absent_rope = R"({"rope_type": "yarn", "factor": 32.0, "truncate": false,
                        "original_max_position_embeddings": 4096})";
  oss.qkv_bias = oss.out_bias = Flag::Key("attention_bias", true);
  oss.mlp_bias = Flag::Never();
  oss.window = WindowRule::kPattern;
  oss.sliding_window = 128;
  oss.window_pattern = 2;
  oss.names = &GptOssNames();
  oss.mxfp4_names = &GptOssMxfp4Names();
  oss.refine = RefineGptOss;
  oss.refine_gguf = RefineGgufGptOss;
  return oss;
}

Family DeepseekV3(Family deepseek) {
  deepseek.name = deepseek.model_type = "deepseek_v3";
  deepseek.architectures = kDeepseekV3Architectures;
  deepseek.gguf_architectures = kDeepseek2Gguf;
  deepseek.gguf_renormalise = false;
  deepseek.refine_gguf = RefineGgufDeepseek;
  deepseek.keys.head_dim = "qk_rope_head_dim";  // the rotated part; see ApplyLatentAttention
  deepseek.head_dim = 64;
  deepseek.qkv_bias = deepseek.out_bias = deepseek.mlp_bias = Flag::Never();
  deepseek.rope_layout = RopeLayout::kInterleaved;
  deepseek.names = &DeepseekNames();
  deepseek.stacked_names = &DeepseekStackedNames();
  deepseek.refine = RefineDeepseekV3;
  return deepseek;
}

Family DeepseekV2(Family deepseek) {
  deepseek.name = deepseek.model_type = "deepseek_v2";
  deepseek.architectures = kDeepseekV2Architectures;
  deepseek.gguf_architectures = {};  // V3's row serves both
  deepseek.refine = RefineDeepseekV2;
  return deepseek;
}

}  // namespace

MoeRows MakeMoeRows(const Family& llama, const Family& mistral, const Family& qwen2) {
  MoeRows rows;
  rows.mixtral = Mixtral(mistral);
  rows.qwen2_moe = Qwen2Moe(qwen2);
  rows.qwen3_moe = Qwen3Moe(rows.qwen2_moe);
  rows.gpt_oss = GptOss(llama);
  rows.deepseek_v3 = DeepseekV3(llama);
  rows.deepseek_v2 = DeepseekV2(rows.deepseek_v3);
  return rows;
}

}  // namespace heddle::engine
