// Models that give embeddings or scores of classes against Hugging Face transformers
// (tests/golden/pooled_models.json), on several implementations of the ops, in chunks and on ranks.
#include <cmath>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/model/load.h"
#include "engine/model/pooled_head.h"
#include "kernels/cuda/cuda_device.h"
#include "nlohmann/json.hpp"
#include "tests/support/gguf_model.h"
#include "tests/support/goldens.h"
#include "tests/support/greedy_runner.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/stepped_load.h"
#include "tests/support/synthetic_model.h"
#include "tests/support/temp_dir.h"

namespace heddle {
namespace {

using nlohmann::json;

std::vector<json> Cases() { return test::LoadGoldenJson("pooled_models.json").at("cases"); }

json CaseOf(const std::string& name) {
  for (const json& entry : Cases()) {
    if (entry.at("name") == name) return entry;
  }
  FAIL("there is no case " << name);
  return {};
}

test::Golden GoldenOf(const json& entries) {
  test::Golden golden;
  golden.dtype = "F32";
  for (const json& entry : entries) {
    golden.tensors.push_back(
        {.name = entry.at(0), .shape = entry.at(1), .scale = entry.at(2), .offset = entry.at(3)});
  }
  return golden;
}

std::vector<test::TensorToWrite> Tensors(const json& entries) {
  return test::SyntheticTensors(GoldenOf(entries));
}

// Writes the folder of a case.
std::filesystem::path WriteFolder(const json& entry, const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  test::WriteFile(folder / "config.json", entry.at("config").dump());
  for (const auto& [name, content] : entry.at("files").items()) {
    std::filesystem::create_directories((folder / name).parent_path());
    test::WriteFile(folder / name, content.dump());
  }
  test::WriteFile(folder / "model.safetensors", test::SafetensorsBytes(Tensors(entry["tensors"])));
  for (const auto& [name, tensors] : entry.at("folder_tensors").items()) {
    test::WriteFile(folder / name / "model.safetensors", test::SafetensorsBytes(Tensors(tensors)));
  }
  return folder;
}

// Writes the GGUF file of a case that has one.
std::filesystem::path WriteGgufOf(const json& entry, const std::filesystem::path& path) {
  test::GgufModel model;
  model.folder = GoldenOf(entry.at("tensors"));
  for (const auto& [name, tensors] : entry.at("folder_tensors").items()) {
    model.modules.emplace(name, GoldenOf(tensors));
  }
  model.file = std::make_shared<const json>(entry.at("gguf"));
  return test::WriteGguf(model, path);
}

engine::LoadOptions Options(const std::string& ops, int32_t tp = 1, int32_t pp = 1) {
  engine::LoadOptions options;
  options.layout.tp = tp;
  options.layout.pp = pp;
  options.reference_ops = ops == "reference";
  if (!options.reference_ops) options.cpu.isa = ops;
  options.cpu.num_threads = 2;
  options.capacity.kv_bytes = 4 << 20;
  options.capacity.max_batch_tokens = 64;
  options.kv_type = "f32";
  return options;
}

engine::Pooling PoolingOf(const engine::LocalModel& model) {
  return model.model.pooled->pooling.value_or(engine::Pooling::kLast);
}

bool IsNormalized(const engine::LocalModel& model) {
  return !model.head->output().is_classifier() && model.head->output().normalize;
}

void Normalize(std::vector<float>* values) {
  double squares = 0;
  for (const float value : *values) squares += double{value} * value;
  for (float& value : *values) value = static_cast<float>(value / std::sqrt(squares));
}

// The model's output for a prompt: its embedding or its logits.
std::vector<float> Output(engine::LocalModel& model, const std::vector<engine::TokenId>& prompt,
                          int32_t chunk, int32_t second_begin) {
  std::vector<float> values = model.head->Apply(
      test::PooledState(*model.executor, prompt, PoolingOf(model), chunk, second_begin));
  if (IsNormalized(model)) Normalize(&values);
  return values;
}

float MaxError(const std::vector<float>& found, const std::vector<float>& wanted) {
  REQUIRE(found.size() == wanted.size());
  float error = 0;
  for (size_t i = 0; i < found.size(); ++i) error = std::max(error, std::abs(found[i] - wanted[i]));
  return error;
}

void CheckCase(const json& entry, engine::LocalModel& model, int32_t chunk) {
  for (size_t i = 0; i < entry["prompts"].size(); ++i) {
    const auto prompt = entry["prompts"][i].get<std::vector<engine::TokenId>>();
    INFO(entry["name"] << ", a prompt of " << prompt.size() << " in chunks of " << chunk);
    const int32_t second = entry["seconds"].empty() ? -1 : entry["seconds"][i].get<int32_t>();
    std::vector<float> output = Output(model, prompt, chunk, second);
    std::vector<float> wanted = entry["outputs"][i];
    if (IsNormalized(model)) Normalize(&wanted);  // as embeddings of GGUF files always are
    CHECK(MaxError(output, wanted) < 2e-4f);
    if (!model.head->output().is_classifier()) continue;
    model.head->Score(&output);
    CHECK(MaxError(output, entry["scores"][i]) < 2e-4f);
  }
}

// A text of an encoder is read at once.
int32_t ChunkFor(const engine::LocalModel& model) {
  const engine::ExecutorLimits& limits = model.executor->limits();
  return limits.whole_prompts ? limits.max_context : 64;
}

TEST_CASE("Embeddings and scores equal transformers' within 2e-4", "[golden]") {
  for (const json& entry : Cases()) {
    test::TempDir dir;
    const std::filesystem::path folder = WriteFolder(entry, dir.path() / "model");
    for (const std::string ops : {"reference", "portable", "auto"}) {
      auto model = engine::LoadLocalModel(folder, Options(ops));
      INFO(entry["name"] << " on " << ops << ": " << model.status().ToString());
      REQUIRE(model.ok());
      REQUIRE(model->head != nullptr);
      CheckCase(entry, *model, ChunkFor(*model));
      // Rows of an encoder see what is behind them.
      if (model->executor->limits().whole_prompts) continue;
      CheckCase(entry, *model, /*chunk=*/7);
    }
  }
}

// On the emulated device, in each of `chunks`, or in the one that suits the model.
void CheckOnCuda(const std::string& name, std::vector<int32_t> chunks) {
  const json entry = CaseOf(name);
  test::TempDir dir;
  engine::LoadOptions options = Options("auto");
  options.make_device = [] {
    return kernels::CreateCudaDevice(
        {.activations = kernels::DType::kF32, .workspace_bytes = int64_t{4} << 20});
  };
  auto model = engine::LoadLocalModel(WriteFolder(entry, dir.path() / "model"), options);
  INFO(name << ": " << model.status().ToString());
  REQUIRE(model.ok());
  if (chunks.empty()) chunks = {ChunkFor(*model)};
  for (const int32_t chunk : chunks) CheckCase(entry, *model, chunk);
}

TEST_CASE("The emulated CUDA device gives the same embeddings and scores", "[golden][cuda]") {
  for (const std::string name : {"bert_mean", "xlm_roberta_reranker", "modernbert_first",
                                 "embedding_gemma", "jina_v2_mean", "mpnet_mean"}) {
    CheckOnCuda(name, {});
  }
}

TEST_CASE("Decoders on the emulated CUDA device sum the rows of prompts in chunks",
          "[golden][cuda]") {
  for (const std::string name : {"llama_mean_dense", "qwen3_reranker"}) {
    CheckOnCuda(name, {3, 64});
  }
}

TEST_CASE("GGUF files give transformers' embeddings and scores", "[golden]") {
  int found = 0;
  for (const json& entry : Cases()) {
    if (!entry.contains("gguf")) continue;
    ++found;
    test::TempDir dir;
    const std::filesystem::path file = WriteGgufOf(entry, dir.path() / "model.gguf");
    for (const std::string ops : {"reference", "auto"}) {
      auto model = engine::LoadLocalModel(file, Options(ops));
      INFO(entry["name"] << " on " << ops << ": " << model.status().ToString());
      REQUIRE(model.ok());
      REQUIRE(model->head != nullptr);
      CHECK(model->unused_tensors.empty());
      CheckCase(entry, *model, /*chunk=*/64);
    }
  }
  CHECK(found == 12);
}

TEST_CASE("GGUF files whose output cannot be had are refused by name", "[golden]") {
  using Catch::Contains;
  const auto refusal = [](const json& entry) {
    test::TempDir dir;
    const std::filesystem::path file = WriteGgufOf(entry, dir.path() / "model.gguf");
    auto model = engine::LoadLocalModel(file, Options("auto"));
    REQUIRE_FALSE(model.ok());
    return std::string(model.status().message());
  };
  const auto set = [](json* entry, const std::string& key, const json& value) {
    for (json& pair : (*entry)["gguf"]["metadata"]) {
      if (pair[0].get<std::string>().ends_with(key)) pair[1] = value;
    }
  };
  json entry = CaseOf("bert_mean");
  set(&entry, ".pooling_type", 9);
  CHECK_THAT(refusal(entry), Contains("pooling_type") && Contains("0 to 4"));
  set(&entry, ".pooling_type", 4);
  CHECK_THAT(refusal(entry), Contains("cls.output.weight"));
  entry = CaseOf("bert_mean");
  set(&entry, ".attention.causal", true);
  CHECK_THAT(refusal(entry), Contains("attention.causal"));
  // A cross-encoder of BERT's without the layer that its class is read through.
  entry = CaseOf("xlm_roberta_reranker");
  std::erase_if(entry["gguf"]["file"].get_ref<json::array_t&>(), [](const json& tensor) {
    return tensor[0].get<std::string>().starts_with("cls.") &&
           !tensor[0].get<std::string>().starts_with("cls.output");
  });
  CHECK_THAT(refusal(entry), Contains("cls.weight"));
  entry = CaseOf("xlm_roberta_reranker");
  set(&entry, ".classifier.output_labels", {"a", "b"});
  CHECK_THAT(refusal(entry), Contains("classifier.output_labels"));
  entry = CaseOf("modernbert_first");
  set(&entry, ".sliding_window_pattern", {1, 0});
  CHECK_THAT(refusal(entry), Contains("sliding_window_pattern"));
}

TEST_CASE("Ranks and stages give the same embeddings and scores", "[golden]") {
  for (const json& entry : Cases()) {
    test::TempDir dir;
    const std::filesystem::path folder = WriteFolder(entry, dir.path() / "model");
    for (const auto& [tp, pp] : {std::pair{3, 1}, {1, 2}}) {
      auto model = engine::LoadLocalModel(folder, Options("auto", tp, pp));
      INFO(entry["name"] << ", " << tp << " x " << pp << ": " << model.status().ToString());
      REQUIRE(model.ok());
      CheckCase(entry, *model, ChunkFor(*model));
    }
  }
}

scheduler::SchedulerOptions OptionsFor(const engine::ExecutorLimits& limits) {
  return {.num_pages = limits.num_pages,
          .page_tokens = limits.page_tokens,
          .max_context = limits.max_context,
          .windows = limits.windows,
          .window_grain = limits.window_grain,
          .whole_prompts = limits.whole_prompts,
          .max_step_tokens = limits.max_batch_tokens,
          .max_step_seqs = 16,
          .max_in_flight = 1,
          .prefix_cache = false};
}

std::vector<scheduler::GenerationRequest> PooledRequests(const engine::LocalModel& model,
                                                         std::mt19937_64* random) {
  const engine::ExecutorLimits& limits = model.executor->limits();
  std::vector<scheduler::GenerationRequest> requests;
  for (uint64_t i = 1; i <= 24; ++i) {
    scheduler::GenerationRequest request;
    request.id = scheduler::RequestId{i};
    constexpr uint64_t kLengths[] = {1, 17, 100, 700};
    const bool is_long = limits.max_context > 700;
    for (uint64_t t = is_long ? kLengths[i % 4] : 1 + (*random)() % 60; t > 0; --t) {
      request.prompt.push_back(static_cast<engine::TokenId>(
          2 + (*random)() % (static_cast<uint64_t>(limits.vocab) - 2)));
    }
    request.max_tokens = 0;
    request.pooling = PoolingOf(model);
    if (limits.whole_prompts && i % 3 == 0) {
      request.second_begin = static_cast<int32_t>(request.prompt.size() / 2);
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

TEST_CASE("States of texts are the same bits alone and under load", "[golden]") {
  for (const std::string name :
       {"llama_mean_dense", "qwen3_reranker", "bert_mean", "modernbert_first",
        "modernbert_reranker", "embedding_gemma", "nomic_mean", "eurobert_mean", "bert_long",
        "modernbert_long", "jina_v2_mean", "mpnet_long"}) {
    test::TempDir dir;
    auto model =
        engine::LoadLocalModel(WriteFolder(CaseOf(name), dir.path() / "model"), Options("auto"));
    REQUIRE(model.ok());
    const engine::ExecutorLimits& limits = model->executor->limits();
    const scheduler::SchedulerOptions plain = OptionsFor(limits);
    std::mt19937_64 random(11);
    const auto requests = PooledRequests(*model, &random);
    std::map<scheduler::RequestId, std::vector<float>> alone;
    for (const scheduler::GenerationRequest& request : requests) {
      test::SteppedLoad load(model->executor.get(), plain);
      load.Run({request}, 0);
      alone.insert(load.pooled().begin(), load.pooled().end());
    }
    REQUIRE(alone.size() == requests.size());
    for (int round = 0; round < 6; ++round) {
      scheduler::SchedulerOptions options = plain;
      options.num_pages = (limits.max_context > 700 ? 64 : 8) + static_cast<int32_t>(random() % 40);
      if (!options.whole_prompts) options.max_step_tokens = 2 + static_cast<int32_t>(random() % 62);
      options.prefix_cache = !options.whole_prompts && round % 2 == 1;
      INFO(name << ", " << options.num_pages << " pages, " << options.max_step_tokens << " rows");
      test::SteppedLoad load(model->executor.get(), options);
      load.Run(requests, round % 3);
      CHECK(load.pooled() == alone);
    }
  }
}

TEST_CASE("A folder says what its model's output is", "[golden]") {
  test::TempDir dir;
  json entry = CaseOf("llama_mean_dense");
  entry["files"]["config_sentence_transformers.json"] = {
      {"prompts", {{"query", "Q: "}, {"document", ""}}}, {"default_prompt_name", "query"}};
  entry["files"]["sentence_bert_config.json"] = {{"max_seq_length", 32}};
  auto info = engine::DescribeModel(WriteFolder(entry, dir.path() / "a"), Options("auto"));
  REQUIRE(info.ok());
  const engine::PooledOutput& output = *info->model.pooled;
  CHECK(output.pooling == engine::Pooling::kMean);
  CHECK_FALSE(output.normalize);
  CHECK(output.layers.size() == 2);
  CHECK(output.prompts.front() == std::pair<std::string, std::string>("document", ""));
  CHECK(output.default_prompt == "query");
  CHECK(output.max_tokens == 32);
  CHECK(info->unused_tensors.empty());

  json scores = CaseOf("qwen3_reranker");
  scores["config"]["sentence_transformers"] = {
      {"activation_fn", "torch.nn.modules.linear.Identity"}, {"version", "5.0.0"}};
  info = engine::DescribeModel(WriteFolder(scores, dir.path() / "b"), Options("auto"));
  REQUIRE(info.ok());
  CHECK(info->model.pooled->labels == std::vector<std::string>{"LABEL_0"});
  CHECK(info->model.pooled->rule == engine::ScoreRule::kRaw);
}

// The message of what is wrong with a folder.
std::string Refusal(const json& entry) {
  test::TempDir dir;
  auto model = engine::LoadLocalModel(WriteFolder(entry, dir.path() / "model"), Options("auto"));
  REQUIRE_FALSE(model.ok());
  return std::string(model.status().message());
}

TEST_CASE("Modules that cannot be run are refused by name", "[golden]") {
  const auto changed = [](const std::string& file, const json& value) {
    json entry = CaseOf("llama_mean_dense");
    entry["files"][file] = value;
    return Refusal(entry);
  };
  using Catch::Contains;
  const json transformer = {{"path", ""}, {"type", "sentence_transformers.models.Transformer"}};
  const auto with = [&](const std::string& type, const std::string& path) {
    return json::array({transformer, {{"path", path}, {"type", type}}});
  };
  CHECK_THAT(changed("modules.json", with("models.WordWeights", "1_Pooling")),
             Contains("WordWeights"));
  CHECK_THAT(changed("modules.json", with("models.Pooling", "../1_Pooling")),
             Contains("../1_Pooling"));
  CHECK_THAT(changed("modules.json", json::object()), Contains("modules.json must hold a list"));
  CHECK_THAT(changed("modules.json", json::array({1})), Contains("no object"));
  CHECK_THAT(changed("modules.json", with("models.Pooling", "9_Pooling")), Contains("9_Pooling"));
  CHECK_THAT(changed("1_Pooling/config.json", {{"pooling_mode_max_tokens", true}}),
             Contains("pooling_mode_max_tokens"));
  CHECK_THAT(changed("1_Pooling/config.json",
                     {{"pooling_mode_cls_token", true}, {"pooling_mode_lasttoken", true}}),
             Contains("one way of pooling"));
  CHECK_THAT(changed("1_Pooling/config.json", {{"include_prompt", false}}),
             Contains("include_prompt"));
  CHECK_THAT(changed("2_Dense/config.json", {{"in_features", 63}, {"out_features", 80}}),
             Contains("in_features"));
  CHECK_THAT(
      changed("2_Dense/config.json", {{"in_features", 64},
                                      {"out_features", 80},
                                      {"activation_function", "torch.nn.modules.activation.Mish"}}),
      Contains("Mish"));
  CHECK_THAT(changed("config_sentence_transformers.json", {{"prompts", {{"query", 7}}}}),
             Contains("prompts.query"));
  json entry = CaseOf("llama_mean_dense");
  entry["folder_tensors"]["2_Dense"][0][1] = {80, 63};
  CHECK_THAT(Refusal(entry), Contains("linear.weight"));
  entry["folder_tensors"]["2_Dense"] = json::array();
  CHECK_FALSE(Refusal(entry).empty());
}

TEST_CASE("Heads of classes that do not fit are refused by name", "[golden]") {
  using Catch::Contains;
  json entry = CaseOf("qwen3_reranker");
  entry["config"]["id2label"] = {{"0", "a"}, {"1", "b"}};
  CHECK_THAT(Refusal(entry), Contains("score.weight"));
  entry = CaseOf("qwen3_reranker");
  entry["config"]["sentence_transformers"] = {{"activation_fn", "torch.nn.modules.Mish"}};
  CHECK_THAT(Refusal(entry), Contains("Mish"));
  entry = CaseOf("qwen3_reranker");
  entry["tensors"].erase(entry["tensors"].size() - 1);
  CHECK_THAT(Refusal(entry), Contains("score.weight"));
}

}  // namespace
}  // namespace heddle
