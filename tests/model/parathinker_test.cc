// Models with segment embeddings (ParaThinker): logits of a plain prompt, and of thoughts side by
// side with what follows them, against transformers with explicit mask and positions; and files
// whose tables are not what they should be.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/model/load.h"
#include "engine/step.h"
#include "kernels/cuda/cuda_device.h"
#include "nlohmann/json.hpp"
#include "scheduler/context_layout.h"
#include "tests/model/part_rows.h"
#include "tests/support/goldens.h"
#include "tests/support/synthetic_model.h"
#include "tests/support/temp_dir.h"

namespace heddle::engine {
namespace {

using nlohmann::json;
using scheduler::ContextParts;
using test::Golden;

constexpr SequenceId kId{1};
constexpr int32_t kPageTokens = 8;

absl::StatusOr<LocalModel> Load(const Golden& golden, const std::filesystem::path& folder,
                                bool reference_ops = false, int32_t tp = 1) {
  LoadOptions options;
  options.layout.tp = tp;
  options.reference_ops = reference_ops;
  options.cpu.num_threads = 2;
  options.capacity.kv_bytes = 4 << 20;
  options.capacity.page_tokens = kPageTokens;
  options.capacity.max_batch_tokens = 64;
  options.kv_type = "f32";
  return LoadLocalModel(test::WriteSyntheticModel(golden, folder), options);
}

// The prompt, one part for each thought, and what follows them.
ContextParts Thoughts(const json& golden) {
  const int32_t at = golden["joined_prompt"];
  std::vector<ContextParts> thoughts;
  std::vector<int32_t> lengths;
  for (const json& length : golden["thoughts"]) {
    thoughts.push_back(scheduler::PartsApart({}, at));
    thoughts.back().back().segment = static_cast<int32_t>(thoughts.size());
    lengths.push_back(at + length.get<int32_t>());
  }
  std::vector<const ContextParts*> children;
  for (const ContextParts& thought : thoughts) children.push_back(&thought);
  return scheduler::JoinParts(children, lengths, at);
}

// The logits of all tokens, of a sequence that begins and ends here.
std::vector<float> Run(LocalExecutor& executor, const std::vector<TokenId>& tokens,
                       const ContextParts& parts) {
  StepPlan plan;
  plan.begun.push_back({kId, {}, {}});
  std::vector<float> logits = test::LogitsByParts(executor, parts, tokens, kId, &plan);
  plan.ended.push_back(kId);
  test::RunStep(executor, &plan);
  return logits;
}

float MaxError(const json& top, const json& last, const std::vector<float>& logits) {
  const size_t n_tokens = top.size();
  const size_t vocab = logits.size() / n_tokens;
  REQUIRE(last[0].size() == vocab);
  float error = 0.0f;
  for (size_t t = 0; t < n_tokens; ++t) {
    for (const json& best : top[t]) {
      const float found = logits[t * vocab + best[0].get<size_t>()];
      error = std::max(error, std::abs(found - best[1].get<float>()));
    }
  }
  for (size_t i = 0; i < 2; ++i) {
    for (size_t v = 0; v < vocab; ++v) {
      const float found = logits[(n_tokens - 2 + i) * vocab + v];
      error = std::max(error, std::abs(found - last[i][v].get<float>()));
    }
  }
  return error;
}

TEST_CASE("Thoughts side by side have the logits of their segments", "[model][golden]") {
  const Golden golden = test::LoadGolden("parathinker");
  const json file = test::LoadGoldenJson("parathinker.json");
  const bool reference_ops = GENERATE(true, false);
  const int32_t tp = GENERATE(1, 2);
  const test::TempDir folder;
  absl::StatusOr<LocalModel> model = Load(golden, folder.path(), reference_ops, tp);
  INFO(model.status().ToString());
  REQUIRE(model.ok());
  CHECK(model->executor->limits().segments == 5);
  const std::vector<TokenId> prompt = file["prompt"];
  CHECK(MaxError(file["top"], file["last"], Run(*model->executor, prompt, {{}})) < 1e-4f);
  const std::vector<TokenId> joined = file["joined"];
  const std::vector<float> logits = Run(*model->executor, joined, Thoughts(file));
  CHECK(MaxError(file["joined_top"], file["joined_last"], logits) < 1e-4f);
  // Another segment is another context.
  ContextParts wrong = Thoughts(file);
  wrong[2].segment = 4;
  CHECK(MaxError(file["joined_top"], file["joined_last"], Run(*model->executor, joined, wrong)) >
        1e-2f);
}

TEST_CASE("Thoughts side by side have the logits of their segments on CUDA", "[model][cuda]") {
  const Golden golden = test::LoadGolden("parathinker");
  const json file = test::LoadGoldenJson("parathinker.json");
  const test::TempDir folder;
  LoadOptions options;
  options.make_device = [] {
    return kernels::CreateCudaDevice(
        {.activations = kernels::DType::kF32, .workspace_bytes = int64_t{4} << 20});
  };
  options.capacity.kv_bytes = 4 << 20;
  options.capacity.page_tokens = kPageTokens;
  options.capacity.max_batch_tokens = 64;
  options.kv_type = "f32";
  auto model = LoadLocalModel(test::WriteSyntheticModel(golden, folder.path()), options);
  INFO(model.status().ToString());
  REQUIRE(model.ok());
  const std::vector<TokenId> prompt = file["prompt"], joined = file["joined"];
  CHECK(MaxError(file["top"], file["last"], Run(*model->executor, prompt, {{}})) < 1e-3f);
  const std::vector<float> logits = Run(*model->executor, joined, Thoughts(file));
  CHECK(MaxError(file["joined_top"], file["joined_last"], logits) < 1e-3f);
}

TEST_CASE("Tables of segments are refused where they are not what they should be", "[model]") {
  const test::TempDir folder;
  Golden golden = test::LoadGolden("parathinker");
  const std::string second = "model.layers.1.self_attn.seg_embeddings.weight";
  const auto found =
      std::find_if(golden.tensors.begin(), golden.tensors.end(),
                   [&](const test::SyntheticTensor& tensor) { return tensor.name == second; });
  REQUIRE(found != golden.tensors.end());
  std::string named = second;
  SECTION("one is missing") { golden.tensors.erase(found); }
  SECTION("one has other rows than config.json says") { found->shape[0] = 4; }
  SECTION("one is as wide as all heads") { found->shape[1] = 32; }
  SECTION("config.json speaks of more than there are") {
    json config = *golden.config;
    config["max_segments"] = 6;
    golden.config = std::make_shared<const json>(config);
    named = "seg_embeddings.weight";
  }
  SECTION("config.json has a number that is none") {
    json config = *golden.config;
    config["max_segments"] = 0;
    golden.config = std::make_shared<const json>(config);
    named = "max_segments";
  }
  SECTION("the family reads none") {
    json config = *golden.config;
    config["model_type"] = "qwen3";
    config["architectures"] = {"Qwen3ForCausalLM"};
    golden.config = std::make_shared<const json>(config);
    named = "max_segments";
  }
  const absl::StatusOr<LocalModel> model = Load(golden, folder.path());
  REQUIRE_FALSE(model.ok());
  INFO(model.status().ToString());
  CHECK(std::string(model.status().message()).find(named) != std::string::npos);
}

}  // namespace
}  // namespace heddle::engine
