#include "engine/family/model_description.h"

#include <cmath>

#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"
#include "tests/model/described_configs.h"
#include "tests/support/gguf_model.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/goldens.h"
#include "tests/support/paths.h"
#include "tests/support/status_matchers.h"
#include "tests/support/synthetic_model.h"
#include "tests/support/temp_dir.h"

namespace heddle::engine {
namespace {

using absl::StatusCode;
using nlohmann::json;
using test::CheckError;
using test::DescribeJson;
using test::GgufWriter;
using test::TempDir;
using test::With;

json LlamaConfig() {
  return json::parse(R"({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 1000,
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "eos_token_id": 2})");
}

absl::Status ConfigError(const std::string& key, const json& value) {
  return DescribeJson(With(LlamaConfig(), key, value)).status();
}

std::vector<int32_t> Windows(const json& config) {
  auto description = DescribeJson(config);
  INFO(description.status().ToString());
  REQUIRE(description.ok());
  std::vector<int32_t> windows;
  for (const LayerSpec& layer : description->spec.layers) windows.push_back(layer.attention.window);
  return windows;
}

TEST_CASE("Every golden model is described, and all of its tensors are used", "[model][unit]") {
  for (const std::string& name : test::GoldenNames()) {
    test::Golden golden = test::LoadGolden(name);
    if (golden.gguf.has_value()) continue;
    INFO(name);
    TempDir dir;
    auto checkpoint = OpenCheckpoint(test::WriteSyntheticModel(golden, dir.path()));
    REQUIRE(checkpoint.ok());
    auto description = Describe(*checkpoint);
    INFO(description.status().ToString());
    REQUIRE(description.ok());
    CHECK(ValidateTensors(*checkpoint, *description).ok());
    CHECK(UnusedTensors(*checkpoint, *description).empty());
    // Quantised matrices are several tensors of their file each.
    if (golden.config->contains("quantization_config")) continue;
    CHECK(checkpoint->tensors().size() == golden.tensors.size());
  }
}

TEST_CASE("A Llama config becomes a spec, with transformers' values for absent keys",
          "[model][unit]") {
  auto description = DescribeJson(LlamaConfig());
  REQUIRE(description.ok());
  const ModelSpec& spec = description->spec;
  CHECK(spec.family == "llama");
  CHECK(spec.hidden == 64);
  CHECK(spec.vocab == 1000);
  CHECK(spec.n_layers() == 4);
  CHECK(spec.max_context == 512);
  CHECK(spec.norm == NormKind::kRms);
  CHECK(spec.norm_eps == 1e-6f);
  CHECK_FALSE(spec.tied_embeddings);
  const AttentionSpec& attention = spec.layers[3].attention;
  CHECK(attention.n_heads == 8);
  CHECK(attention.n_kv_heads == 2);
  CHECK(attention.head_dim == 8);
  CHECK(attention.scale == Approx(1.0 / std::sqrt(8.0)));
  CHECK_FALSE(attention.qkv_bias);
  CHECK(attention.window == 0);
  CHECK(attention.rope.theta == 10000.0f);
  CHECK(attention.rope.rotary_dim == 8);
  CHECK(attention.rope.layout == RopeLayout::kHalf);
  CHECK(spec.layers[0].mlp.inter == 96);
  CHECK(spec.layers[0].mlp.activation == Activation::kSilu);
  LayerNames names = description->names.Layer(3);
  CHECK(description->names.embed == "model.embed_tokens.weight");
  CHECK(description->names.lm_head == "lm_head.weight");
  CHECK(names.q == "model.layers.3.self_attn.q_proj.weight");
  CHECK(names.q_bias.empty());
  CHECK(names.q_norm.empty());
}

TEST_CASE("Null counts as absent", "[model][unit]") {
  json config = LlamaConfig();
  for (const char* key : {"head_dim", "rope_scaling", "rope_theta", "rms_norm_eps",
                          "attention_bias", "num_key_value_heads", "bos_token_id"}) {
    config[key] = nullptr;
  }
  auto description = DescribeJson(config);
  REQUIRE(description.ok());
  CHECK(description->spec.layers[0].attention.n_kv_heads == 8);
  CHECK_FALSE(description->bos_id.has_value());
}

TEST_CASE("Families differ in what their rows say", "[model][unit]") {
  auto qwen2 = DescribeJson(*test::LoadGolden("qwen2").config);
  REQUIRE(qwen2.ok());
  CHECK(qwen2->spec.layers[0].attention.qkv_bias);
  CHECK_FALSE(qwen2->spec.layers[0].attention.out_bias);
  CHECK(qwen2->spec.tied_embeddings);
  CHECK(qwen2->names.lm_head.empty());
  CHECK(qwen2->names.Layer(1).k_bias == "model.layers.1.self_attn.k_proj.bias");
  CHECK(qwen2->names.Layer(1).o_bias.empty());

  json config = *test::LoadGolden("qwen3").config;
  auto qwen3 = DescribeJson(config);
  REQUIRE(qwen3.ok());
  CHECK(qwen3->spec.layers[0].attention.qk_norm == QkNorm::kPerHead);
  CHECK(qwen3->spec.layers[0].attention.head_dim == 32);
  CHECK(qwen3->names.Layer(0).q_norm == "model.layers.0.self_attn.q_norm.weight");
  config.erase("head_dim");
  CHECK(DescribeJson(config)->spec.layers[0].attention.head_dim == 128);  // Qwen3Config

  auto gpt2 = DescribeJson(*test::LoadGolden("gpt2").config);
  REQUIRE(gpt2.ok());
  CHECK(gpt2->spec.norm == NormKind::kLayer);
  CHECK(gpt2->spec.learned_positions);
  CHECK(gpt2->spec.tied_embeddings);
  CHECK(gpt2->spec.layers[0].attention.rope.rotary_dim == 0);
  CHECK_FALSE(gpt2->spec.layers[0].mlp.gated);
  CHECK(gpt2->spec.layers[0].mlp.inter == 256);
  CHECK(gpt2->spec.layers[0].mlp.activation == Activation::kGeluTanh);
  CHECK(gpt2->names.transposed_linears);
  CHECK(gpt2->names.Layer(2).qkv == "transformer.h.2.attn.c_attn.weight");
  CHECK(gpt2->names.Layer(2).q.empty());

  auto bare = DescribeJson(*test::LoadGolden("gpt2_bare").config);
  REQUIRE(bare.ok());
  CHECK(bare->spec.layers[1].attention.scale == Approx(0.5 / std::sqrt(16.0)));
  CHECK(bare->spec.layers[0].mlp.activation == Activation::kGelu);
  CHECK(bare->spec.layers[0].mlp.inter == 96);
}

TEST_CASE("Sliding windows follow each family's own keys", "[model][unit]") {
  json mistral = *test::LoadGolden("mistral").config;
  CHECK(Windows(mistral) == std::vector<int32_t>{0, 0, 0});
  CHECK(Windows(With(mistral, "sliding_window", 16)) == std::vector<int32_t>{16, 16, 16});
  mistral.erase("sliding_window");
  CHECK(Windows(mistral) == std::vector<int32_t>{4096, 4096, 4096});  // MistralConfig

  json qwen = *test::LoadGolden("qwen2").config;
  CHECK(Windows(qwen) == std::vector<int32_t>{0, 0, 0});
  qwen["use_sliding_window"] = true;
  qwen["sliding_window"] = 8;
  qwen["max_window_layers"] = 1;
  CHECK(Windows(qwen) == std::vector<int32_t>{0, 8, 8});
  qwen["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention"};
  CHECK(Windows(qwen) == std::vector<int32_t>{8, 0, 8});
  CheckError(DescribeJson(With(qwen, "layer_types", {"full_attention"})).status(),
             StatusCode::kInvalidArgument, {"\"layer_types\"", "a list of 3 strings"});
  CheckError(DescribeJson(With(qwen, "layer_types", {"mamba", "mamba", "mamba"})).status(),
             StatusCode::kUnimplemented, {"\"mamba\"", "full_attention"});
  // Llama's own class ignores the key.
  CHECK(Windows(With(LlamaConfig(), "sliding_window", 16)) == std::vector<int32_t>(4, 0));
}

TEST_CASE("Gemma's layers without a window come every second or sixth, or from layer_types",
          "[model][unit]") {
  json gemma2 = *test::LoadGolden("gemma2").config;
  CHECK(Windows(gemma2) == std::vector<int32_t>{8, 0, 8, 0});
  json gemma3 = *test::LoadGolden("gemma3").config;
  CHECK(Windows(gemma3) == std::vector<int32_t>{8, 8, 0, 8});
  gemma3.erase("sliding_window_pattern");
  CHECK(Windows(gemma3) == std::vector<int32_t>{8, 8, 8, 8});  // Gemma3TextConfig: 6
  CHECK(Windows(*test::LoadGolden("ministral").config) == std::vector<int32_t>{0, 8, 8});
  auto description = DescribeJson(*test::LoadGolden("gemma3").config);
  REQUIRE(description.ok());
  CHECK(description->spec.layers[0].attention.rope.theta == 5000.0f);
  CHECK(description->spec.layers[2].attention.rope.theta == 100000.0f);
  CHECK(description->spec.layers[2].attention.rope.scaling == RopeScaling::kLinear);
}

TEST_CASE("The rotated part of heads may stand in RoPE's parameters and beside them",
          "[model][unit]") {
  json config = *test::LoadGolden("phi3_longrope").config;
  json parameters = config["rope_scaling"];
  parameters["partial_rotary_factor"] = config["partial_rotary_factor"];
  parameters["rope_theta"] = config["rope_theta"];
  config.erase("rope_scaling");
  config["rope_parameters"] = parameters;  // as transformers 5 saves it
  auto description = DescribeJson(config);
  INFO(description.status().ToString());
  REQUIRE(description.ok());
  CHECK(description->spec.layers[0].attention.rope.rotary_dim == 12);
}

TEST_CASE("LongRoPE serves the context within which no angle changes, or all of the longer one",
          "[model][unit]") {
  json config = *test::LoadGolden("phi3_longrope").config;
  auto description = DescribeJson(config);
  REQUIRE(description.ok());
  ModelSpec& spec = description->spec;
  const RopeSpec& rope = spec.layers[0].attention.rope;
  CHECK(spec.max_context == 64);
  CHECK(rope.rotary_dim == 12);
  for (const int32_t within : {0, 20, 64}) {
    ServeLongTexts(within, &spec);
    CHECK(spec.max_context == 64);
    CHECK(rope.divisors == std::vector<float>{1.0f, 1.25f, 1.5f, 2.0f, 3.0f, 4.5f});
  }
  ServeLongTexts(65, &spec);
  CHECK(spec.max_context == 128);
  CHECK(rope.divisors == std::vector<float>{2.0f, 3.0f, 4.0f, 6.0f, 8.0f, 12.0f});
  config["rope_scaling"]["short_factor"] = {1.0, 2.0};
  CheckError(DescribeJson(config).status(), StatusCode::kInvalidArgument,
             {"\"rope_scaling.short_factor\" is [1.0,2.0]", "a list of 6 numbers"});
}

TEST_CASE("What a family's row does not express is refused by key", "[model][unit]") {
  auto error = [](const char* golden, const char* key, const json& value) {
    return DescribeJson(With(*test::LoadGolden(golden).config, key, value)).status();
  };
  CheckError(error("falcon", "alibi", true), StatusCode::kUnimplemented, {"\"alibi\" is true"});
  CheckError(error("falcon_grouped", "parallel_attn", false), StatusCode::kUnimplemented,
             {"\"parallel_attn\" is false", "new_decoder_architecture"});
  CheckError(error("falcon_grouped", "num_kv_heads", 3), StatusCode::kInvalidArgument,
             {"\"num_kv_heads\" is 3", "a divisor of"});
  CheckError(error("gemma3", "use_bidirectional_attention", true), StatusCode::kUnimplemented,
             {"\"use_bidirectional_attention\" is true"});
  CheckError(error("gemma2", "query_pre_attn_scalar", 0), StatusCode::kInvalidArgument,
             {"\"query_pre_attn_scalar\" is 0"});
  CheckError(error("smollm3", "use_sliding_window", true), StatusCode::kUnimplemented,
             {"\"use_sliding_window\" is true"});
  CheckError(error("smollm3", "no_rope_layers", {1, 0}), StatusCode::kInvalidArgument,
             {"\"no_rope_layers\" is [1,0]", "a list of 4 numbers"});
  CheckError(error("granite", "residual_multiplier", 0), StatusCode::kInvalidArgument,
             {"\"residual_multiplier\" is 0"});
}

TEST_CASE("YaRN stretches the context that the model is served with", "[model][unit]") {
  json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 512}};
  auto description = DescribeJson(With(LlamaConfig(), "rope_scaling", yarn));
  REQUIRE(description.ok());
  CHECK(description->spec.max_context == 2048);
}

TEST_CASE("A decoder that sees both directions says where it cannot", "[model][unit]") {
  const auto both = DescribeJson(With(LlamaConfig(), "is_causal", false));
  INFO(both.status().ToString());
  REQUIRE(both.ok());
  CHECK(both->spec.reads_whole_texts());
  CHECK_FALSE(DescribeJson(With(LlamaConfig(), "is_causal", true))->spec.reads_whole_texts());
  for (const char* name : {"gemma2", "deepseek_v3", "mamba2", "qwen3_next", "falcon_h1"}) {
    INFO(name);
    CheckError(DescribeJson(With(*test::LoadGolden(name).config, "is_causal", false)).status(),
               StatusCode::kUnimplemented, {"\"is_causal\" is false"});
  }
}

TEST_CASE("RoPE parameters in the wrong form name the inner key", "[model][unit]") {
  auto error = [](const json& parameters) { return ConfigError("rope_scaling", parameters); };
  CheckError(error({{"rope_type", "llama3"}, {"factor", "eight"}}), StatusCode::kInvalidArgument,
             {"m/config.json", "\"rope_scaling.factor\" is \"eight\"", "a number"});
  CheckError(error({{"rope_type", "linear"}}), StatusCode::kInvalidArgument,
             {"\"rope_scaling.factor\" is missing"});
  CheckError(error({{"type", "linear"}, {"factor", -2}}), StatusCode::kInvalidArgument,
             {"\"rope_scaling.factor\" is -2"});
  CheckError(error({{"type", "ntk"}}), StatusCode::kUnimplemented,
             {"\"rope_scaling.type\" is \"ntk\"", "linear, dynamic, llama3, yarn and longrope"});
  CheckError(error({{"rope_type", "llama3"},
                    {"factor", 8},
                    {"low_freq_factor", 4},
                    {"high_freq_factor", 1}}),
             StatusCode::kInvalidArgument, {"\"rope_scaling.high_freq_factor\" is 1"});
  CheckError(error("yarn"), StatusCode::kInvalidArgument, {"\"rope_scaling\"", "an object"});
  CheckError(ConfigError("rope_theta", 0), StatusCode::kInvalidArgument, {"\"rope_theta\" is 0"});
  CheckError(ConfigError("head_dim", 7), StatusCode::kInvalidArgument, {"\"head_dim\"", "even"});
}

TEST_CASE("Sizes that are wrong or contradict each other name key, value and what is valid",
          "[model][unit]") {
  constexpr StatusCode kInvalid = StatusCode::kInvalidArgument;
  CheckError(ConfigError("hidden_size", "64"), kInvalid,
             {"m/config.json: \"hidden_size\" is \"64\", expected an integer"});
  CheckError(ConfigError("hidden_size", nullptr), kInvalid, {"\"hidden_size\" is missing"});
  CheckError(ConfigError("hidden_size", 64.5), kInvalid, {"is 64.5, expected an integer"});
  CheckError(ConfigError("hidden_size", -64), kInvalid, {"is -64", "from 1 to"});
  CheckError(ConfigError("hidden_size", uint64_t{1} << 63), kInvalid, {"9223372036854775808"});
  CheckError(ConfigError("num_hidden_layers", 1000000), kInvalid, {"1000000", "1 to 4096"});
  CheckError(ConfigError("num_key_value_heads", 3), kInvalid,
             {"\"num_key_value_heads\" is 3", "divisor of \"num_attention_heads\" (8)"});
  CheckError(ConfigError("num_attention_heads", 6), kInvalid,
             {"\"num_attention_heads\" is 6", "divisor of \"hidden_size\" (64)"});
  CheckError(ConfigError("rms_norm_eps", 0), kInvalid, {"\"rms_norm_eps\" is 0"});
  CheckError(ConfigError("tie_word_embeddings", 1), kInvalid, {"is 1, expected true or false"});
  CheckError(ConfigError("vocab_size", json::array()), kInvalid, {"\"vocab_size\" is []"});
  CheckError(ConfigError("hidden_act", "quick_gelu"), StatusCode::kUnimplemented,
             {"\"hidden_act\" is \"quick_gelu\"", "supported are silu"});
  CHECK_FALSE(ConfigError("quantization_config", 4).ok());
  CHECK_FALSE(DescribeJson(json::array()).ok());
}

TEST_CASE("An unknown family lists the supported ones and the nearest", "[model][unit]") {
  CheckError(ConfigError("architectures", {"Qwen3sForCausalLM"}), StatusCode::kUnimplemented,
             {"\"architectures\" is \"Qwen3sForCausalLM\"", "LlamaForCausalLM",
              "the nearest is Qwen3ForCausalLM"});
  CheckError(ConfigError("architectures", 5), StatusCode::kInvalidArgument, {"a list of strings"});
  json config = LlamaConfig();
  config.erase("architectures");
  CHECK(DescribeJson(config)->spec.family == "llama");
  CheckError(DescribeJson(With(config, "model_type", "mistrall")).status(),
             StatusCode::kUnimplemented, {"\"mistrall\"", "the nearest is mistral"});
  config.erase("model_type");
  CheckError(DescribeJson(config).status(), StatusCode::kInvalidArgument,
             {"\"architectures\" is missing", "\"model_type\""});
  std::string gguf = GgufWriter().String("general.architecture", "llamb").Bytes();
  TempDir dir;
  test::WriteFile(dir / "m.gguf", gguf);
  auto checkpoint = OpenCheckpoint(dir / "m.gguf");
  REQUIRE(checkpoint.ok());
  CheckError(Describe(*checkpoint).status(), StatusCode::kUnimplemented,
             {"m.gguf", "\"llamb\"", "the nearest is llama"});
}

TEST_CASE("Experts that cannot be are refused by key and value", "[model][unit]") {
  const json qwen = *test::LoadGolden("qwen3_moe").config;
  CheckError(DescribeJson(With(qwen, "num_experts_per_tok", 9)).status(),
             StatusCode::kInvalidArgument,
             {"\"num_experts_per_tok\" is 9", "at most the number of experts (8)"});
  CheckError(DescribeJson(With(qwen, "num_experts", 100000)).status(), StatusCode::kInvalidArgument,
             {"\"num_experts\" is 100000", "1 to 1024"});
  CheckError(DescribeJson(With(qwen, "mlp_only_layers", {-1})).status(),
             StatusCode::kInvalidArgument, {"\"mlp_only_layers\" is -1", "indices of layers"});
  CheckError(DescribeJson(With(qwen, "mlp_only_layers", 2)).status(), StatusCode::kInvalidArgument,
             {"\"mlp_only_layers\" is 2", "a list"});
  CheckError(DescribeJson(With(qwen, "use_sliding_window", true)).status(),
             StatusCode::kUnimplemented, {"\"use_sliding_window\" is true"});
}

TEST_CASE("Layers of ERNIE 4.5 have experts at their interval", "[model][unit]") {
  const json config = *test::LoadGolden("ernie4_5_moe").config;
  const auto experts = [](const json& changed) {
    std::vector<int32_t> counts;
    for (const LayerSpec& layer : DescribeJson(changed)->spec.layers) {
      counts.push_back(layer.moe.n_experts);
    }
    return counts;
  };
  CHECK(experts(config) == std::vector<int32_t>{0, 8, 0, 8});
  CHECK(experts(With(config, "moe_layer_end_index", -1)) == std::vector<int32_t>{0, 8, 0, 8});
  CHECK(experts(With(config, "moe_layer_end_index", 2)) == std::vector<int32_t>{0, 8, 0, 0});
  CHECK(experts(With(config, "moe_layer_interval", 1)) == std::vector<int32_t>{0, 8, 8, 8});
  CheckError(DescribeJson(With(config, "moe_layer_start_index", -2)).status(),
             StatusCode::kInvalidArgument, {"moe_layer_start_index", "-2"});
  CheckError(DescribeJson(With(config, "moe_k", 9)).status(), StatusCode::kInvalidArgument,
             {"moe_k", "9"});
}

TEST_CASE("Latent attention caches one row of latent and rotated key", "[model][unit]") {
  const json config = *test::LoadGolden("deepseek_v3").config;
  auto description = DescribeJson(config);
  REQUIRE(description.ok());
  const AttentionSpec& attention = description->spec.layers[0].attention;
  CHECK(attention.n_kv_heads == 1);
  CHECK(attention.head_dim == 16 + 40);
  CHECK(attention.scale == Approx(1 / std::sqrt(24.0 + 16.0)));
  CHECK(description->spec.layers[0].moe.n_experts == 0);
  CHECK(description->spec.layers[1].moe.rule.group_best == 2);
  CHECK(description->spec.layers[1].mlp.inter == 2 * 64);
  const json lite = *test::LoadGolden("deepseek_v2_lite").config;
  // YaRN by 4: (0.1 * 0.707 * ln 4 + 1)^2 sharper.
  CHECK(DescribeJson(lite)->spec.layers[0].attention.scale ==
        Approx(std::pow(0.0707 * std::log(4.0) + 1, 2) / std::sqrt(40.0)));
  CheckError(DescribeJson(With(config, "n_group", 3)).status(), StatusCode::kInvalidArgument,
             {"\"n_group\" is 3", "a divisor of the number of experts (8)"});
  CheckError(DescribeJson(With(config, "topk_group", 1)).status(), StatusCode::kInvalidArgument,
             {"\"topk_group\" is 1", "room for 3"});
  CheckError(DescribeJson(With(config, "attention_bias", true)).status(),
             StatusCode::kUnimplemented, {"\"attention_bias\" is true"});
  CheckError(DescribeJson(With(config, "kv_lora_rank", 1 << 20)).status(),
             StatusCode::kInvalidArgument, {"\"kv_lora_rank\" is 1048576"});
}

TEST_CASE("Layers of DeciLM lack the blocks that their config leaves out", "[model][unit]") {
  json config = *test::LoadGolden("decilm").config;
  auto description = DescribeJson(config);
  REQUIRE(description.ok());
  const std::vector<LayerSpec>& layers = description->spec.layers;
  CHECK(layers[0].attention.n_heads == 0);
  CHECK(layers[1].attention.n_kv_heads == 2);
  CHECK(layers[2].mlp.inter == 0);
  CHECK(layers[3].attention.linear);
  CHECK(layers[1].mlp.inter == 512);  // 2 * 6.5 * 64 / 3 = 277, up to a multiple of 256
  CHECK(description->names.Layer(0, layers[0]).attn_norm.empty());
  CHECK(description->names.Layer(2, layers[2]).mlp_norm.empty());
  CHECK(description->names.Layer(3, layers[3]).o == "model.layers.3.self_attn.linear_attn.weight");
  config["block_configs"][1]["attention"]["n_heads_in_group"] = 3;
  CheckError(DescribeJson(config).status(), StatusCode::kInvalidArgument,
             {"\"block_configs[1].attention.n_heads_in_group\" is 3", "a divisor"});
  config["block_configs"] = {1, 2};
  CheckError(DescribeJson(config).status(), StatusCode::kInvalidArgument,
             {"\"block_configs\"", "a list of 5, one per layer"});
}

TEST_CASE("gpt-oss with another gate than the kernels' is refused", "[model][unit]") {
  const json config = *test::LoadGolden("gpt_oss").config;
  CheckError(DescribeJson(With(config, "swiglu_limit", 5.0)).status(), StatusCode::kUnimplemented,
             {"\"swiglu_limit\" is 5", "expected 7"});
  CHECK(Windows(config) == std::vector<int32_t>{8, 0, 8});
  // Blocks of a folder whose config asks for another number of experts.
  test::Golden golden = test::LoadGolden("gpt_oss_mxfp4");
  golden.config = std::make_shared<const json>(With(*golden.config, "num_local_experts", 3));
  TempDir dir;
  auto checkpoint = OpenCheckpoint(test::WriteSyntheticModel(golden, dir.path()));
  REQUIRE(checkpoint.ok());
  auto description = Describe(*checkpoint);
  REQUIRE(description.ok());
  CheckError(ValidateTensors(*checkpoint, *description), StatusCode::kInvalidArgument,
             {"model.layers.0.mlp.router.weight", "[4, 64]", "[3, 64]"});
}

TEST_CASE("Layers without experts keep the dense MLP's names", "[model][unit]") {
  auto description = DescribeJson(*test::LoadGolden("qwen2_moe").config);
  REQUIRE(description.ok());
  auto names = [&](int32_t i) {
    return description->names.Layer(i, description->spec.layers[static_cast<size_t>(i)]);
  };
  CHECK(names(0).gate == "model.layers.0.mlp.gate_proj.weight");
  CHECK(names(0).router.empty());
  CHECK(names(0).row_gate.empty());
  CHECK(names(1).gate == "model.layers.1.mlp.shared_expert.gate_proj.weight");
  CHECK(ExpertName(names(1).expert_up, 5) == "model.layers.1.mlp.experts.5.up_proj.weight");
  CHECK(names(3).expert_down.empty());
}

TEST_CASE("Special ids come from generation_config.json first, as one id or many",
          "[model][unit]") {
  json config = With(LlamaConfig(), "bos_token_id", 1);
  auto plain = DescribeJson(config);
  REQUIRE(plain.ok());
  CHECK(plain->eos_ids == std::vector<TokenId>{2});
  CHECK(plain->bos_id == 1);
  auto both = DescribeJson(config, {{"eos_token_id", {9, 3, 9}}, {"bos_token_id", 7}});
  REQUIRE(both.ok());
  CHECK(both->eos_ids == std::vector<TokenId>{3, 9});
  CHECK(both->bos_id == 7);
  CHECK(DescribeJson(With(config, "eos_token_id", -1))->eos_ids.empty());
  CheckError(ConfigError("eos_token_id", 1000), StatusCode::kInvalidArgument,
             {"\"eos_token_id\" is 1000", "0 to 999"});
  CheckError(ConfigError("eos_token_id", {1, "x"}), StatusCode::kInvalidArgument, {"\"x\""});
  CheckError(ConfigError("eos_token_id", ~uint64_t{0} - 5), StatusCode::kInvalidArgument,
             {"0 to 999"});
}

TEST_CASE("Generation defaults are read and bounded", "[model][unit]") {
  auto description = DescribeJson(LlamaConfig(), {{"do_sample", true},
                                                  {"temperature", 0.7},
                                                  {"top_k", 20},
                                                  {"top_p", 0.8},
                                                  {"repetition_penalty", 1.05},
                                                  {"typical_p", 0.95},
                                                  {"min_p", nullptr}});
  REQUIRE(description.ok());
  const GenerationDefaults& defaults = description->generation;
  CHECK(defaults.do_sample == true);
  CHECK(defaults.temperature == 0.7f);
  CHECK(defaults.top_k == 20);
  CHECK(defaults.top_p == 0.8f);
  CHECK(defaults.repetition_penalty == 1.05f);
  CHECK(defaults.typical_p == 0.95f);
  CHECK_FALSE(defaults.min_p.has_value());
  CHECK_FALSE(defaults.max_new_tokens.has_value());
  CheckError(DescribeJson(LlamaConfig(), {{"top_p", 1.5}}).status(), StatusCode::kInvalidArgument,
             {"\"top_p\" is 1.5", "from 0 to 1"});
}

}  // namespace
}  // namespace heddle::engine
