// Descriptions of families whose layers have state in place of keys and values.
#include <cmath>

#include "catch2/catch.hpp"
#include "engine/family/model_description.h"
#include "nlohmann/json.hpp"
#include "tests/model/described_configs.h"
#include "tests/support/goldens.h"
#include "tests/support/status_matchers.h"

namespace heddle::engine {
namespace {

using absl::StatusCode;
using nlohmann::json;
using test::CheckError;
using test::DescribeJson;
using test::With;

TEST_CASE("Granite 4 runs with and without recurrent layers, and without attention",
          "[model][unit]") {
  const json attends = *test::LoadGolden("granitemoehybrid").config;
  REQUIRE(DescribeJson(attends).ok());
  json absent = attends;
  absent.erase("layer_types");  // then all of them are recurrent
  CHECK(DescribeJson(absent)->spec.layers[1].attention.recurrence.is_here());
  json old = absent;
  old["layers_block_type"] = {"attention", "attention"};
  CHECK(DescribeJson(old).ok());
  const json config = *test::LoadGolden("granitemoehybrid_groups").config;
  const ModelSpec spec = DescribeJson(config)->spec;
  const RecurrenceSpec& recurrence = spec.layers[0].attention.recurrence;
  CHECK(recurrence.shape == kernels::RecurrenceShape{.rule = kernels::RecurrenceRule::kMamba2,
                                                     .n_heads = 8,
                                                     .n_key_heads = 4,
                                                     .key_dim = 12,
                                                     .value_dim = 16,
                                                     .taps = 3});
  CHECK(recurrence.norm_width == 32);
  CHECK(recurrence.max_step == 0.9f);
  CHECK(spec.layers[1].attention.recurrence.shape.taps == 0);
  const auto refused = [&](const char* key, const json& value, StatusCode code, const char* text) {
    CheckError(DescribeJson(With(config, key, value)).status(), code, {key, text});
  };
  CHECK(DescribeJson(With(config, "layer_types", {"mamba", "mamba"})).ok());
  refused("layer_types", {"mamba", "conv"}, StatusCode::kUnimplemented, "conv");
  refused("layer_types", {"attention"}, StatusCode::kInvalidArgument, "one per layer");
  refused("layer_types", "attention", StatusCode::kInvalidArgument, "one per layer");
  refused("mamba_n_heads", 7, StatusCode::kInvalidArgument, "divisor");
  CheckError(DescribeJson(With(config, "mamba_n_groups", 3)).status(), StatusCode::kInvalidArgument,
             {"mamba_n_heads", "multiple"});
  refused("mamba_d_head", 17, StatusCode::kInvalidArgument, "mamba_expand");
  refused("mamba_d_conv", 40, StatusCode::kUnimplemented, "16");
  refused("time_step_limit", {1, "x"}, StatusCode::kInvalidArgument, "two numbers");
}

TEST_CASE("Qwen3-Next: layers of both kinds, heads of state and bad values", "[model][unit]") {
  const json config = *test::LoadGolden("qwen3_next").config;
  auto description = DescribeJson(config);
  REQUIRE(description.ok());
  const ModelSpec& spec = description->spec;
  const RecurrenceSpec& recurrence = spec.layers[0].attention.recurrence;
  CHECK(recurrence.shape ==
        kernels::RecurrenceShape{
            .n_heads = 4, .n_key_heads = 2, .key_dim = 12, .value_dim = 20, .taps = 4});
  CHECK(recurrence.norm_width == 20);
  CHECK(spec.layers[0].attention.n_heads == 0);
  CHECK(spec.layers[2].attention.recurrence.shape.taps == 0);
  CHECK(spec.layers[2].attention.gated);
  CHECK(spec.layers[2].attention.rope.rotary_dim == 6);
  CHECK(spec.norm_weight_offset == 1.0f);
  CHECK(spec.layers[0].mlp.row_gate);
  CHECK(spec.layers[1].moe.n_experts == 0);
  json every = config;
  every.erase("layer_types");
  CHECK(DescribeJson(every)->spec.layers[3].attention.n_heads == 6);

  const auto refused = [&](const char* key, const json& value, StatusCode code, const char* text) {
    CheckError(DescribeJson(With(config, key, value)).status(), code, {key, text});
  };
  refused("layer_types", {"linear_attention"}, StatusCode::kInvalidArgument, "one per layer");
  refused("layer_types", {"full_attention", "full_attention", "full_attention", "mamba"},
          StatusCode::kUnimplemented, "mamba");
  refused("linear_num_value_heads", 3, StatusCode::kInvalidArgument, "multiple");
  refused("linear_num_value_heads", 0, StatusCode::kInvalidArgument, "");
  refused("linear_num_key_heads", -1, StatusCode::kInvalidArgument, "");
  refused("linear_key_head_dim", 1 << 20, StatusCode::kInvalidArgument, "");
  refused("linear_conv_kernel_dim", 17, StatusCode::kUnimplemented, "16");
  refused("attn_output_gate", false, StatusCode::kUnimplemented, "");
  refused("hidden_act", "gelu", StatusCode::kUnimplemented, "silu");
  json large = With(config, "linear_num_value_heads", 16384);
  large = With(large, "linear_value_head_dim", 4096);
  CheckError(DescribeJson(large).status(), StatusCode::kUnimplemented, {"a layer's state has"});
}

TEST_CASE("RWKV-7: heads, ranks and bad values", "[model][unit]") {
  const json config = *test::LoadGolden("rwkv7").config;
  auto description = DescribeJson(config);
  INFO(description.status().ToString());
  REQUIRE(description.ok());
  const ModelSpec& spec = description->spec;
  const WkvSpec& wkv = spec.layers[1].attention.wkv;
  CHECK(wkv.n_heads == 5);
  CHECK(wkv.head_dim == 16);
  CHECK(wkv.decay_rank == 24);
  CHECK(wkv.value_rank == 8);
  CHECK(wkv.norm_eps == Approx(16 * 4e-5));
  CHECK(spec.layers[0].attention.wkv.value_rank == 0);
  CHECK(spec.layers[0].mlp.token_shift);
  CHECK(spec.layers[0].mlp.activation == Activation::kRelu2);
  CHECK(spec.embedding_norm);
  CHECK(description->names.Layer(0, spec.layers[0]).wkv.v1.empty());
  CHECK(description->names.Layer(1, spec.layers[1]).o == "model.layers.1.attn.o_proj.weight");
  // Sizes that follow from the width: of 80, sqrt(80) * 2.5 * 16 / 64 is 5.6, and 5 sqrt(80) is 45.
  json absent = config;
  for (const char* key : {"decay_low_rank_dim", "gate_low_rank_dim", "intermediate_size"}) {
    absent[key] = nullptr;
  }
  const ModelSpec usual = DescribeJson(absent)->spec;
  CHECK(usual.layers[1].attention.wkv.decay_rank == 32);
  CHECK(usual.layers[1].attention.wkv.gate_rank == 32);
  CHECK(usual.layers[1].mlp.inter == 320);
  json heads = With(config, "num_heads", 10);
  heads.erase("head_dim");
  CHECK(DescribeJson(heads)->spec.layers[0].attention.wkv.head_dim == 8);

  const auto refused = [&](const char* key, const json& value, StatusCode code, const char* text) {
    CheckError(DescribeJson(With(config, key, value)).status(), code, {key, text});
  };
  refused("head_dim", 24, StatusCode::kInvalidArgument, "a divisor of the width (80)");
  json wide = config;
  wide["hidden_size"] = 1 << 15;
  wide["head_dim"] = 1 << 14;
  wide.erase("num_heads");
  wide.erase("value_dim");
  CheckError(DescribeJson(wide).status(), StatusCode::kUnimplemented, {"head_dim", "supported"});
  refused("attn", {{"layers", {1}}}, StatusCode::kUnimplemented, "layers of attention");
  refused("value_dim", {80, 160, 80}, StatusCode::kUnimplemented, "160");
  refused("norm_bias", false, StatusCode::kUnimplemented, "expected true");
  refused("hidden_act", "gelu", StatusCode::kUnimplemented, "sqrelu");
  refused("decay_low_rank_dim", -1, StatusCode::kInvalidArgument, "");
}

TEST_CASE("LFM2: layers of both kinds, widths and bad values", "[model][unit]") {
  const json config = *test::LoadGolden("lfm2").config;
  auto description = DescribeJson(config);
  REQUIRE(description.ok());
  const ModelSpec& spec = description->spec;
  CHECK(spec.layers[0].attention.conv.taps == 5);
  CHECK(spec.layers[0].attention.conv.channels == 80);
  CHECK(spec.layers[0].attention.n_heads == 0);
  CHECK(spec.layers[1].attention.conv.taps == 0);
  CHECK(spec.layers[1].attention.n_heads == 5);
  CHECK(spec.layers[0].mlp.inter == 144);  // int(1.1 * int(2 * 168 / 3)) = 123, in multiples of 24
  CHECK(DescribeJson(With(config, "block_ffn_dim_multiplier", nullptr))->spec.layers[0].mlp.inter ==
        112);
  // The first releases say which layers attend.
  auto first = DescribeJson(*test::LoadGolden("lfm2_first").config);
  REQUIRE(first.ok());
  CHECK(first->spec.layers[1].attention.n_heads == 4);
  CHECK(first->spec.layers[2].attention.conv.bias);
  CHECK(first->spec.tied_embeddings);

  const auto refused = [&](const char* key, const json& value, StatusCode code, const char* text) {
    CheckError(DescribeJson(With(config, key, value)).status(), code, {key, text});
  };
  refused("layer_types", {"conv"}, StatusCode::kInvalidArgument, "one per layer");
  refused("layer_types", {"conv", "conv", "conv", "conv", "mamba"}, StatusCode::kUnimplemented,
          "mamba");
  refused("conv_L_cache", 0, StatusCode::kInvalidArgument, "");
  refused("conv_L_cache", 1000, StatusCode::kInvalidArgument, "");
  refused("conv_dim", 64, StatusCode::kUnimplemented, "hidden_size");
  refused("block_ffn_dim_multiplier", 1e-5, StatusCode::kInvalidArgument, "1e-05");
  refused("block_use_swiglu", false, StatusCode::kUnimplemented, "");
  refused("num_key_value_heads", 3, StatusCode::kInvalidArgument, "divisor");
  json indexed = config;
  indexed.erase("layer_types");
  CHECK(DescribeJson(With(indexed, "full_attn_idxs", {0, 4})).ok());
  CheckError(DescribeJson(With(indexed, "full_attn_idxs", {5})).status(),
             StatusCode::kInvalidArgument, {"full_attn_idxs"});
  CheckError(DescribeJson(With(indexed, "full_attn_idxs", {-1})).status(),
             StatusCode::kInvalidArgument, {"full_attn_idxs"});
  const json moe = *test::LoadGolden("lfm2_moe").config;
  CHECK(DescribeJson(moe)->spec.layers[0].moe.n_experts == 0);
  CHECK(DescribeJson(moe)->spec.layers[1].moe.choice_bias);
  CHECK(DescribeJson(moe)->spec.layers[1].moe.rule.sum_offset == 1e-6f);
  CheckError(DescribeJson(With(moe, "num_dense_layers", 9)).status(), StatusCode::kInvalidArgument,
             {"num_dense_layers"});
  CheckError(DescribeJson(With(moe, "num_experts_per_tok", 7)).status(),
             StatusCode::kInvalidArgument, {"num_experts_per_tok"});
}

TEST_CASE("Mamba-2: every layer recurs, and nothing counts heads of attention", "[model][unit]") {
  const json config = *test::LoadGolden("mamba2").config;
  auto description = DescribeJson(config);
  REQUIRE(description.ok());
  const ModelSpec& spec = description->spec;
  const RecurrenceSpec& recurrence = spec.layers[2].attention.recurrence;
  CHECK(recurrence.shape == kernels::RecurrenceShape{.rule = kernels::RecurrenceRule::kMamba2,
                                                     .n_heads = 6,
                                                     .n_key_heads = 3,
                                                     .key_dim = 12,
                                                     .value_dim = 16,
                                                     .taps = 4});
  CHECK(recurrence.norm_width == 32);
  CHECK(recurrence.min_step == 0.0f);
  CHECK(spec.max_context == 1 << 20);
  for (const LayerSpec& layer : spec.layers) {
    CHECK(layer.attention.n_heads == 0);
    CHECK(layer.mlp.inter == 0);
  }
  // Codestral Mamba's file has these, and numbers that JSON cannot write (json_file_test.cc).
  json published = With(With(config, "norm_before_gate", true), "rms_norm", true);
  published["time_step_limit"] = {0.0, 1.7976931348623157e308};
  auto open = DescribeJson(published);
  REQUIRE(open.ok());
  CHECK(open->spec.layers[0].attention.recurrence.max_step == 3.4e38f);
  published["time_step_limit"] = {0.25, {{"__float__", "Infinity"}}};  // transformers 5
  CHECK(DescribeJson(published)->spec.layers[0].attention.recurrence.min_step == 0.25f);
  CHECK(DescribeJson(published)->spec.layers[0].attention.recurrence.max_step == 3.4e38f);
  const auto refused = [&](const char* key, const json& value, StatusCode code, const char* text) {
    CheckError(DescribeJson(With(config, key, value)).status(), code, {key, text});
  };
  refused("num_heads", 7, StatusCode::kInvalidArgument, "expand * hidden_size (96)");
  refused("head_dim", 8, StatusCode::kInvalidArgument, "expand * hidden_size / num_heads (16)");
  refused("hidden_act", "gelu", StatusCode::kUnimplemented, "silu");
  refused("time_step_limit", {-1, 2}, StatusCode::kInvalidArgument, "two numbers");
}

TEST_CASE("Mamba: every layer is a selective scan of channels", "[model][unit]") {
  const json config = *test::LoadGolden("mamba").config;
  auto description = DescribeJson(config);
  REQUIRE(description.ok());
  const ModelSpec& spec = description->spec;
  const RecurrenceSpec& recurrence = spec.layers[2].attention.recurrence;
  CHECK(recurrence.shape == kernels::RecurrenceShape{.rule = kernels::RecurrenceRule::kSelective,
                                                     .n_heads = 1,
                                                     .n_key_heads = 1,
                                                     .key_dim = 8,
                                                     .value_dim = 86,
                                                     .taps = 4});
  CHECK(recurrence.shape.cols() == 172);
  CHECK(recurrence.step_rank == 3);
  CHECK(recurrence.n_factors() == 19);
  CHECK_FALSE(recurrence.norms_factors);
  CHECK(spec.layers[0].mlp.inter == 0);
  CHECK(spec.max_context == 1 << 20);
  const LayerNames names = description->names.Layer(1, spec.layers[1]);
  CHECK(names.recur_factors == "backbone.layers.1.mixer.x_proj.weight");
  CHECK(names.recur_step_bias == "backbone.layers.1.mixer.dt_proj.bias");
  CHECK(names.recur_norm.empty());
  // Keys that state-spaces' converter wrote besides, which the class does not look at.
  json published = config;
  for (const auto& [key, value] :
       std::initializer_list<std::pair<const char*, json>>{{"d_inner", 86},
                                                           {"d_model", 43},
                                                           {"fused_add_norm", true},
                                                           {"n_layer", 3},
                                                           {"rms_norm", true},
                                                           {"ssm_cfg", json::object()},
                                                           {"time_step_scale", 1.0}}) {
    published[key] = value;
  }
  published.erase("time_step_rank");
  const auto described = DescribeJson(published);
  INFO(described.status().ToString());
  REQUIRE(described.ok());
  CHECK(described->spec.layers[0].attention.recurrence.step_rank == 3);  // 43 / 16, upwards
  const auto refused = [&](const char* key, const json& value, StatusCode code, const char* text) {
    CheckError(DescribeJson(With(config, key, value)).status(), code, {key, text});
  };
  refused("conv_kernel", 17, StatusCode::kUnimplemented, "16");
  refused("state_size", 0, StatusCode::kInvalidArgument, "");
  refused("time_step_rank", "half", StatusCode::kInvalidArgument, "half");
  refused("time_step_rank", -1, StatusCode::kInvalidArgument, "-1");
  refused("expand", 5000, StatusCode::kInvalidArgument, "4096");
  refused("hidden_act", "relu", StatusCode::kUnimplemented, "silu");
  refused("time_step_limit", {0, 1}, StatusCode::kUnimplemented, "nothing reads it");
}

TEST_CASE("Falcon-Mamba's channels are as many as its file says", "[model][unit]") {
  const json config = *test::LoadGolden("falcon_mamba").config;  // expand 16, as published
  auto description = DescribeJson(config);
  REQUIRE(description.ok());
  const RecurrenceSpec& recurrence = description->spec.layers[0].attention.recurrence;
  CHECK(recurrence.shape.values() == 80);
  CHECK(recurrence.norms_factors);
  CHECK(recurrence.factor_norm_eps == 1e-6f);
  CHECK(description->names.Layer(0, description->spec.layers[0]).recur_key_norm.empty());
}

TEST_CASE("Jamba: layers attend, and have experts, in turns", "[model][unit]") {
  const json config = *test::LoadGolden("jamba").config;
  auto description = DescribeJson(config);
  REQUIRE(description.ok());
  const ModelSpec& spec = description->spec;
  CHECK(spec.layers[0].attention.recurrence.shape.values() == 120);
  CHECK(spec.layers[0].mlp.inter == 88);
  CHECK(spec.layers[1].attention.n_heads == 5);
  CHECK(spec.layers[1].attention.rope.rotary_dim == 0);
  CHECK(spec.layers[1].moe.n_experts == 5);
  CHECK_FALSE(spec.layers[1].moe.rule.renormalise);
  CHECK(spec.layers[3].attention.recurrence.is_here());
  CHECK(spec.layers[3].moe.inter == 88);
  CHECK(description->names.Layer(3, spec.layers[3]).recur_query_norm ==
        "model.layers.3.mamba.c_layernorm.weight");
  const auto refused = [&](const char* key, const json& value, StatusCode code, const char* text) {
    CheckError(DescribeJson(With(config, key, value)).status(), code, {key, text});
  };
  refused("attn_layer_offset", 3, StatusCode::kInvalidArgument, "attn_layer_period");
  refused("expert_layer_offset", -1, StatusCode::kInvalidArgument, "expert_layer_period");
  refused("expert_layer_period", 0, StatusCode::kInvalidArgument, "");
  refused("num_experts_per_tok", 6, StatusCode::kInvalidArgument, "number of experts (5)");
  refused("mamba_inner_layernorms", false, StatusCode::kUnimplemented, "true");
}

TEST_CASE("SambaY: the second half reads what the first one keeps", "[model][unit]") {
  const json config = *test::LoadGolden("phi4flash").config;
  auto description = DescribeJson(config);
  INFO(description.status().ToString());
  REQUIRE(description.ok());
  const ModelSpec& spec = description->spec;
  const std::vector<LayerSpec>& layers = spec.layers;
  CHECK(layers[0].attention.recurrence.shape.values() == 120);
  CHECK_FALSE(layers[2].attention.recurrence.is_memory);
  CHECK(layers[4].attention.recurrence.is_memory);
  CHECK_FALSE(layers[6].attention.recurrence.is_here());
  CHECK(layers[6].attention.memory.channels == 120);
  const LayerNames names = description->names.Layer(6, layers[6]);
  CHECK(names.qkv == "model.layers.6.attn.in_proj.weight");
  CHECK(names.o == "model.layers.6.attn.out_proj.weight");
  CHECK(names.conv.empty());
  CHECK(names.recur_decay.empty());
  CHECK(names.lambda_q1.empty());
  for (const size_t i : {size_t{1}, size_t{3}, size_t{5}, size_t{7}}) {
    const AttentionSpec& attention = layers[i].attention;
    CHECK(attention.n_heads == 6);
    CHECK(attention.differential.is_here);
    CHECK(attention.differential.first ==
          Approx(0.8 - 0.6 * std::exp(-0.3 * static_cast<double>(i))));
    CHECK(attention.rope.rotary_dim == 0);
    CHECK(attention.window == (i < 4 ? 9 : 0));
    CHECK(attention.kv_layer == (i == 7 ? 5 : -1));
    CHECK(attention.n_kv_heads == (i == 7 ? 0 : 2));
    CHECK(attention.cached_dim() == 20);
  }
  CHECK(layers[5].attention.cached_heads() == 1);
  CHECK(spec.norm == NormKind::kLayer);
  CHECK(spec.tied_embeddings);
  // The class saves the window of each layer, and may say which ones have it.
  const json windows = {nullptr, 9, nullptr, 9, nullptr, nullptr, nullptr, nullptr};
  CHECK(DescribeJson(With(config, "sliding_window", windows))->spec.layers[3].attention.window ==
        9);
  CHECK(DescribeJson(With(config, "sliding_window", nullptr))->spec.layers[3].attention.window ==
        0);
  json types(8, "full_attention");
  types[1] = types[3] = "sliding_attention";
  CHECK(DescribeJson(With(config, "layer_types", types)).ok());

  const auto refused = [&](const char* key, const json& value, StatusCode code, const char* text) {
    CheckError(DescribeJson(With(config, key, value)).status(), code, {key, text});
  };
  json other = types;
  other[5] = "sliding_attention";
  refused("layer_types", other, StatusCode::kUnimplemented, "for layer 5 of 8");
  refused("layer_types", "full_attention", StatusCode::kInvalidArgument, "one per layer");
  json uneven = windows;
  uneven[3] = 8;
  refused("sliding_window", uneven, StatusCode::kInvalidArgument, "a list of 8");
  uneven[3] = -9;
  refused("sliding_window", uneven, StatusCode::kInvalidArgument, "a list of 8");
  refused("sliding_window", {9}, StatusCode::kInvalidArgument, "a list of 8");
  refused("sliding_window", "9", StatusCode::kInvalidArgument, "");
  refused("num_hidden_layers", 6, StatusCode::kInvalidArgument, "a multiple of 4");
  refused("mb_per_layer", 3, StatusCode::kUnimplemented, "expected 2");
  refused("num_attention_heads", 5, StatusCode::kInvalidArgument, "");
  refused("num_key_value_heads", 3, StatusCode::kInvalidArgument, "in pairs");
  refused("mlp_bias", true, StatusCode::kUnimplemented, "nothing reads it");
  refused("mamba_d_conv", 40, StatusCode::kUnimplemented, "16");
  refused("mamba_expand", 1 << 13, StatusCode::kInvalidArgument, "");
  refused("mamba_dt_rank", "x", StatusCode::kInvalidArgument, "");
}

TEST_CASE("Nemotron-H: each block is one thing, by letters or by words", "[model][unit]") {
  json config = *test::LoadGolden("nemotron_h_moe").config;
  auto description = DescribeJson(config);
  REQUIRE(description.ok());
  const ModelSpec& spec = description->spec;
  CHECK(spec.layers[0].attention.recurrence.is_here());
  CHECK(spec.layers[0].mlp.inter == 0);
  CHECK(spec.layers[1].moe.n_experts == 6);
  CHECK_FALSE(spec.layers[1].moe.gated);
  CHECK(spec.layers[1].moe.rule.score == RouteScore::kSigmoid);
  CHECK(spec.layers[1].mlp.inter == 64);
  CHECK(spec.layers[1].attention.n_heads == 0);
  CHECK(spec.layers[3].attention.n_heads == 6);
  CHECK(spec.layers[3].attention.rope.rotary_dim == 0);
  const LayerNames names = description->names.Layer(1, spec.layers[1]);
  CHECK(names.mlp_norm == "backbone.layers.1.norm.weight");
  CHECK(names.attn_norm.empty());
  CHECK(names.expert_gate.empty());
  // The class has a head of its own, also where the file says that it is tied.
  const auto tied = DescribeJson(With(config, "tie_word_embeddings", true));
  REQUIRE(tied.ok());
  CHECK_FALSE(tied->spec.tied_embeddings);
  CHECK(tied->names.lm_head == "lm_head.weight");
  // transformers 5 writes words, and no number of layers.
  json words = config;
  words.erase("hybrid_override_pattern");
  words.erase("num_hidden_layers");
  words["layers_block_type"] = {"linear_attention", "mlp", "full_attention"};
  auto described = DescribeJson(words);
  INFO(described.status().ToString());
  REQUIRE(described.ok());
  CHECK(described->spec.n_layers() == 3);
  CHECK(described->spec.layers[1].mlp.inter == 72);
  const auto refused = [&](const char* key, const json& value, StatusCode code, const char* text) {
    CheckError(DescribeJson(With(config, key, value)).status(), code, {key, text});
  };
  refused("hybrid_override_pattern", "ME*", StatusCode::kInvalidArgument, "one per layer");
  refused("hybrid_override_pattern", "MEMxE", StatusCode::kUnimplemented, "\"x\"");
  refused("moe_latent_size", 32, StatusCode::kUnimplemented, "narrower than the stream");
  refused("mlp_bias", true, StatusCode::kUnimplemented, "beside experts");
}

TEST_CASE("Falcon-H1: attention and recurrence of a layer read one input", "[model][unit]") {
  const json config = *test::LoadGolden("falcon_h1").config;
  auto description = DescribeJson(config);
  REQUIRE(description.ok());
  const ModelSpec& spec = description->spec;
  CHECK(spec.n_layers() == 6);
  CHECK(spec.layers[2].mlp.inter == 0);
  CHECK(spec.layers[2].attention.n_heads == 5);
  CHECK(spec.layers[3].attention_input == AttentionInput::kShared);
  CHECK(spec.layers[3].attention.recurrence.norm_width == 0);
  CHECK(spec.layers[3].mlp.inter == 88);
  const NameMap& names = description->names;
  CHECK(names.Layer(2, spec.layers[2]).q == "model.layers.1.self_attn.q_proj.weight");
  CHECK(names.Layer(2, spec.layers[2]).attn_norm == "model.layers.1.input_layernorm.weight");
  CHECK(names.Layer(3, spec.layers[3]).attn_norm.empty());
  CHECK(names.Layer(3, spec.layers[3]).qkv == "model.layers.1.mamba.in_proj.weight");
  CHECK(spec.layers[3].attention.recurrence.scales.step == 0.625f);  // 1.25 * 0.5
  CHECK(spec.layers[2].attention.scale == Approx(0.75 * 0.75 * 0.5 / std::sqrt(12.0)));
  CHECK(spec.layers[2].attention.out_scale == 0.9375f);
  CHECK(spec.logit_scale == 0.625f);
  const auto refused = [&](const char* key, const json& value, StatusCode code, const char* text) {
    CheckError(DescribeJson(With(config, key, value)).status(), code, {key, text});
  };
  refused("ssm_multipliers", {1, 1, 1}, StatusCode::kInvalidArgument, "5 numbers");
  refused("mlp_multipliers", {1, 0}, StatusCode::kInvalidArgument, "2 numbers");
  refused("projectors_bias", true, StatusCode::kUnimplemented, "false");
  refused("mamba_d_ssm", 75, StatusCode::kInvalidArgument, "");
}

TEST_CASE("Bamba: layers attend where their index is listed", "[model][unit]") {
  const json config = *test::LoadGolden("bamba").config;
  auto description = DescribeJson(config);
  REQUIRE(description.ok());
  const ModelSpec& spec = description->spec;
  CHECK(spec.layers[1].attention.n_heads == 5);
  CHECK(spec.layers[1].attention.rope.rotary_dim == 6);
  CHECK(spec.layers[2].attention.recurrence.shape.n_key_heads == 2);
  CheckError(DescribeJson(With(config, "attn_layer_indices", {4})).status(),
             StatusCode::kInvalidArgument, {"attn_layer_indices", "from 0 to 3"});
  CHECK(DescribeJson(With(config, "attn_rotary_emb", 6)).ok());
  CheckError(DescribeJson(With(config, "attn_rotary_emb", 4)).status(), StatusCode::kUnimplemented,
             {"attn_rotary_emb", "half a head"});
}

}  // namespace
}  // namespace heddle::engine
