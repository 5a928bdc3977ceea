// Checkpoints, HF folders and GGUF files, described and checked against their tensors.
#include "engine/family/model_description.h"

#include <cmath>

#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"
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
using test::GgufWriter;
using test::TempDir;

// The description of a GGUF file of a golden's model with some metadata replaced.
absl::Status GgufError(const std::string& name, const std::string& key, const json& value) {
  test::GgufModel model = test::LoadGgufModel(name);
  json file = *model.file;
  json kept = json::array();
  for (const json& entry : file["metadata"]) {
    if (entry[0] != key) kept.push_back(entry);
  }
  kept.push_back({key, value});
  file["metadata"] = kept;
  model.file = std::make_shared<const json>(file);
  TempDir dir;
  auto checkpoint = OpenCheckpoint(test::WriteGguf(model, dir / "m.gguf"));
  REQUIRE(checkpoint.ok());
  auto description = Describe(*checkpoint);
  return description.ok() ? ValidateTensors(*checkpoint, *description) : description.status();
}

TEST_CASE("GGUF metadata that contradicts itself is refused by key and value", "[model][unit]") {
  CheckError(GgufError("qwen3_moe", "qwen3moe.expert_used_count", 9), StatusCode::kInvalidArgument,
             {"\"qwen3moe.expert_used_count\" is 9", "at most the number of experts (8)"});
  CheckError(GgufError("qwen3_moe", "qwen3moe.expert_gating_func", 7), StatusCode::kUnimplemented,
             {"\"qwen3moe.expert_gating_func\" is 7", "sigmoid"});
  CheckError(GgufError("qwen3_moe", "qwen3moe.expert_count", 4), StatusCode::kInvalidArgument,
             {"\"blk.0.ffn_gate_inp.weight\" has shape [8, 64]", "[4, 64]"});
  CheckError(GgufError("gemma3", "gemma3.attention.sliding_window_pattern", {1, 0}),
             StatusCode::kInvalidArgument, {"sliding_window_pattern\" is an array of 2", "of 7"});
  CheckError(GgufError("gemma2", "gemma2.attention.sliding_window", -3),
             StatusCode::kInvalidArgument, {"sliding_window\" is", "from 1 to"});
  CheckError(GgufError("qwen3_moe", "qwen3moe.router_temperature", 2), StatusCode::kUnimplemented,
             {"\"qwen3moe.router_temperature\" is set", "nothing reads it"});
  CheckError(GgufError("glm4", "glm4.attention.clamp_kqv", 8), StatusCode::kUnimplemented,
             {"\"glm4.attention.clamp_kqv\""});
  CHECK(GgufError("glm4", "glm4.attention.clamp_kqv", 0).ok());
  CHECK(GgufError("glm4", "glm4.attention.causal", true).ok());
  CHECK(GgufError("glm4", "glm4.attention.causal", false).ok());  // a model of embeddings
  CheckError(GgufError("cohere", "command-r.logit_scale", 0), StatusCode::kInvalidArgument,
             {"logit_scale"});
  CheckError(GgufError("phi3_longrope", "phi3.rope.dimension_count", 10),
             StatusCode::kInvalidArgument, {"\"rope_factors_short.weight\" has 24 bytes"});
  CHECK(GgufError("phi3_longrope", "phi3.rope.scaling.type", "longrope").ok());
  CheckError(GgufError("glm4", "glm4.rope.scaling.type", "longrope"), StatusCode::kUnimplemented,
             {"\"glm4.rope.scaling.type\" is \"longrope\"", "rope_factors_short.weight"});
}

TEST_CASE("GGUF arrays of one value per layer are checked", "[model][unit]") {
  CheckError(GgufError("decilm", "deci.attention.head_count_kv", {2, 2}),
             StatusCode::kInvalidArgument, {"head_count_kv\" is an array of 2", "one of 5"});
  CheckError(GgufError("decilm", "deci.attention.head_count_kv", {0, -1, 1, 0, 4}),
             StatusCode::kInvalidArgument, {"head_count_kv\" is -1", "0 to"});
  CheckError(GgufError("decilm", "deci.feed_forward_length", {0, 0, 0, 0, 0}),
             StatusCode::kInvalidArgument, {"feed_forward_length\" is an array of zeros"});
  CheckError(GgufError("deepseek_v3", "deepseek2.attention.key_length_mla", 16),
             StatusCode::kInvalidArgument, {"key_length_mla\" is 16", "more than"});
}

ModelSpec SpecOfFile(const test::GgufModel& model) {
  TempDir dir;
  auto checkpoint = OpenCheckpoint(test::WriteGguf(model, dir / "m.gguf"));
  REQUIRE(checkpoint.ok());
  auto description = Describe(*checkpoint);
  INFO(description.status().ToString());
  REQUIRE(description.ok());
  return description->spec;
}

// The GGUF file of a golden's model without the keys that end like this.
ModelSpec SpecWithout(const std::string& name, const std::string& ending) {
  test::GgufModel model = test::LoadGgufModel(name);
  json file = *model.file;
  json kept = json::array();
  for (const json& entry : file["metadata"]) {
    if (!entry[0].get<std::string>().ends_with(ending)) kept.push_back(entry);
  }
  file["metadata"] = kept;
  model.file = std::make_shared<const json>(file);
  return SpecOfFile(model);
}

// Converters write no score of what transformers 5 saves.
TEST_CASE("Experts with a bias are chosen by sigmoids where GGUF does not say", "[model][unit]") {
  const auto score = [](const std::string& name) {
    return SpecWithout(name, ".expert_gating_func").layers.back().moe.rule.score;
  };
  for (const char* name : {"deepseek_v3", "glm4_moe", "exaone_moe", "dots1"}) {
    INFO(name);
    CHECK(score(name) == RouteScore::kSigmoid);
  }
  for (const char* name : {"ernie4_5_moe", "qwen3_moe", "deepseek_v2_lite"}) {
    INFO(name);
    CHECK(score(name) == RouteScore::kSoftmax);
  }
}

TEST_CASE("LFM2's experts have an offset of their own where weights are divided by their sum",
          "[model][unit]") {
  CHECK(SpecWithout("lfm2_moe", ".expert_gating_func").layers.back().moe.rule.sum_offset == 1e-6f);
  CHECK(SpecWithout("dots1", ".expert_gating_func").layers.back().moe.rule.sum_offset == 1e-20f);
}

TEST_CASE("YaRN's factor may be whole in GGUF", "[model][unit]") {
  CHECK(GgufError("olmo3", "olmo2.rope.scaling.yarn_attn_factor", 1.25).ok());
  CheckError(GgufError("olmo3", "olmo2.rope.scaling.yarn_attn_factor", 0),
             StatusCode::kInvalidArgument, {"yarn_attn_factor\" is 0"});
}

TEST_CASE("A model whose scores grow beyond a length is served beyond it", "[model][unit]") {
  test::GgufModel model = test::LoadGgufModel("deepseek_v3");
  json file = *model.file;
  file["metadata"].push_back({"deepseek2.attention.temperature_scale", 0.1});
  file["metadata"].push_back({"deepseek2.attention.temperature_length", 32});
  model.file = std::make_shared<const json>(file);
  const ModelSpec spec = SpecOfFile(model);
  CHECK(spec.max_context == 128);
  const SharpenSpec& sharpen = spec.layers[1].attention.sharpen;
  CHECK(sharpen.factor == 0.1f);
  CHECK(sharpen.length == 32);
  CHECK(sharpen.offset == 0);
  const auto folder = DescribeConfig(*test::LoadGolden("ministral3").config, json::object(), "c");
  REQUIRE(folder.ok());
  CHECK(folder->spec.max_context == 512);
  CHECK(folder->spec.layers[0].attention.sharpen.length == 128);
}

TEST_CASE("A GGUF file gives the same spec as the folder it was converted from", "[model][unit]") {
  for (std::string name : {"llama", "llama3_rope", "mistral", "qwen2", "qwen3"}) {
    INFO(name);
    test::Golden golden = test::LoadGolden(name);
    TempDir dir;
    auto checkpoint =
        OpenCheckpoint(test::WriteSyntheticGguf(golden, kernels::DType::kF32, dir / "m.gguf"));
    REQUIRE(checkpoint.ok());
    auto gguf = Describe(*checkpoint);
    INFO(gguf.status().ToString());
    REQUIRE(gguf.ok());
    INFO(ValidateTensors(*checkpoint, *gguf).ToString());
    CHECK(ValidateTensors(*checkpoint, *gguf).ok());
    CHECK(UnusedTensors(*checkpoint, *gguf).empty());
    auto folder = DescribeConfig(*golden.config, json::object(), "m/config.json");
    REQUIRE(folder.ok());
    CHECK(gguf->spec.hidden == folder->spec.hidden);
    CHECK(gguf->spec.vocab == folder->spec.vocab);
    CHECK(gguf->spec.norm_eps == folder->spec.norm_eps);
    CHECK(gguf->spec.tied_embeddings == folder->spec.tied_embeddings);
    REQUIRE(gguf->spec.n_layers() == folder->spec.n_layers());
    const AttentionSpec& found = gguf->spec.layers[0].attention;
    const AttentionSpec& expected = folder->spec.layers[0].attention;
    CHECK(found.n_heads == expected.n_heads);
    CHECK(found.n_kv_heads == expected.n_kv_heads);
    CHECK(found.head_dim == expected.head_dim);
    CHECK(found.qkv_bias == expected.qkv_bias);
    CHECK(found.out_bias == expected.out_bias);
    CHECK(found.qk_norm == expected.qk_norm);
    CHECK(found.rope.theta == expected.rope.theta);
    bool permuted = name[0] == 'l' || name[0] == 'm';
    CHECK(found.rope.layout == (permuted ? RopeLayout::kInterleaved : RopeLayout::kHalf));
    CHECK(found.rope.divisors.size() == golden.rope_divisors.size());
    CHECK(gguf->spec.layers[0].mlp.inter == folder->spec.layers[0].mlp.inter);
    CHECK(gguf->spec.layers[0].mlp.bias == folder->spec.layers[0].mlp.bias);
  }
}

TEST_CASE("A missing, misshapen or unreadable tensor is named with what was expected",
          "[model][unit]") {
  test::Golden golden = test::LoadGolden("qwen2");
  std::vector<test::TensorToWrite> tensors = test::SyntheticTensors(golden);
  auto validate = [&](const std::vector<test::TensorToWrite>& written) {
    TempDir dir;
    test::WriteFile(dir / "config.json", golden.config->dump());
    test::WriteFile(dir / "model.safetensors", test::SafetensorsBytes(written));
    auto checkpoint = OpenCheckpoint(dir.path());
    REQUIRE(checkpoint.ok());
    auto description = Describe(*checkpoint);
    REQUIRE(description.ok());
    return ValidateTensors(*checkpoint, *description);
  };
  const std::string k_name = "model.layers.1.self_attn.k_proj.weight";
  auto k = std::find_if(tensors.begin(), tensors.end(),
                        [&](const auto& tensor) { return tensor.name == k_name; });
  REQUIRE(k != tensors.end());
  CHECK(validate(tensors).ok());

  k->shape = {64, 32};
  CheckError(validate(tensors), StatusCode::kInvalidArgument,
             {k_name, "has shape [64, 32], expected [32, 64]", "kv_heads * head_dim, hidden"});
  k->shape = {32, 64};
  k->dtype = "I32";
  CheckError(validate(tensors), StatusCode::kInvalidArgument, {k_name, "stored as I32"});
  tensors.erase(k);
  CheckError(validate(tensors), StatusCode::kNotFound, {k_name, "is missing, expected [32, 64]"});
}

TEST_CASE("A tensor that the description does not use is reported", "[model][unit]") {
  test::Golden golden = test::LoadGolden("llama_bf16");
  golden.tensors.push_back({"model.layers.0.self_attn.q_norm.weight", {16}, 1.0f, 0.0f});
  golden.tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", {8}, 1.0f, 0.0f});
  TempDir dir;
  auto checkpoint = OpenCheckpoint(test::WriteSyntheticModel(golden, dir.path()));
  REQUIRE(checkpoint.ok());
  auto description = Describe(*checkpoint);
  REQUIRE(description.ok());
  CHECK(UnusedTensors(*checkpoint, *description) ==
        std::vector<std::string_view>{"model.layers.0.self_attn.q_norm.weight"});
}

TEST_CASE("Layers or experts beyond those that the config counts are refused, not left out",
          "[model][unit]") {
  auto validate = [](const char* name, const char* key, int count, int extra_layers) {
    test::Golden golden = test::LoadGolden(name);
    nlohmann::json config = *golden.config;
    config[key] = count;
    config["num_nextn_predict_layers"] = extra_layers;
    golden.config = std::make_shared<const nlohmann::json>(std::move(config));
    TempDir dir;
    auto checkpoint = OpenCheckpoint(test::WriteSyntheticModel(golden, dir.path()));
    REQUIRE(checkpoint.ok());
    auto description = Describe(*checkpoint);
    INFO(description.status());
    REQUIRE(description.ok());
    return ValidateTensors(*checkpoint, *description);
  };
  CheckError(validate("llama_bf16", "num_hidden_layers", 1, 0), StatusCode::kInvalidArgument,
             {"model.layers.1.", "lies behind \"model.layers.0\"", "configuration counts"});
  // Layers for predicting several tokens come behind the others, and are not run.
  CHECK(validate("llama_bf16", "num_hidden_layers", 1, 1).ok());
}

TEST_CASE("A GGUF file with only a vocabulary says so", "[model][unit]") {
  if (!test::HasSharedData("tokenizers")) return;
  auto checkpoint = OpenCheckpoint(test::SharedDataOrSkip("tokenizers/gpt-2.gguf"));
  REQUIRE(checkpoint.ok());
  auto description = Describe(*checkpoint);
  REQUIRE(description.ok());
  CheckError(ValidateTensors(*checkpoint, *description), StatusCode::kInvalidArgument,
             {"gpt-2.gguf", "no tensors", "vocabulary"});
}

TEST_CASE("Trained models in every format are described and complete", "[model][unit]") {
  for (const char* path :
       {"stories260K", "stories260K/stories260K-f32.gguf", "stories260K/stories260K-BF16.gguf",
        "stories260K/stories260K-Q8_0.gguf", "stories260K/stories260K-Q4_0.gguf", "babyllama361",
        "babyllama361/babyllama-tok361-Q4_0.gguf", "slm4096_gpt2"}) {
    if (!test::HasSharedData(path)) continue;
    INFO(path);
    auto checkpoint = OpenCheckpoint(test::SharedDataOrSkip(path));
    REQUIRE(checkpoint.ok());
    auto description = Describe(*checkpoint);
    REQUIRE(description.ok());
    CHECK(ValidateTensors(*checkpoint, *description).ok());
    CHECK(UnusedTensors(*checkpoint, *description).empty());
  }
}

}  // namespace
}  // namespace heddle::engine
