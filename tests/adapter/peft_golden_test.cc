// Adapters of every family against Hugging Face PEFT: tiny models and factors by formula
// (tests/golden/), the best logits of all positions.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/adapter/load_adapter.h"
#include "engine/model/load.h"
#include "nlohmann/json.hpp"
#include "tests/support/gguf_model.h"
#include "tests/support/goldens.h"
#include "tests/support/greedy_runner.h"
#include "tests/support/synthetic_model.h"
#include "tests/support/synthetic_weights.h"
#include "tests/support/temp_dir.h"

namespace heddle::engine {
namespace {

using nlohmann::json;
using test::Golden;

LocalModel LoadBase(const std::filesystem::path& path, const std::string& ops) {
  LoadOptions options;
  options.reference_ops = ops == "reference";
  if (!options.reference_ops) options.cpu.isa = ops;
  options.cpu.num_threads = 2;
  options.capacity.kv_bytes = 4 << 20;
  options.capacity.max_batch_tokens = 64;
  options.capacity.adapter_max_rank = 8;
  options.kv_type = "f32";
  auto model = LoadLocalModel(path, options);
  INFO(model.status().ToString());
  REQUIRE(model.ok());
  return *std::move(model);
}

// The folder that PEFT would have saved.
std::filesystem::path WriteAdapter(const json& golden, int bits,
                                   const std::filesystem::path& folder) {
  std::vector<test::TensorToWrite> tensors;
  for (const json& tensor : golden["tensors"]) {
    const auto shape = tensor[1].get<std::vector<int64_t>>();
    const std::string name = tensor[0];
    const std::vector<float> values =
        test::SyntheticValues(name, shape[0] * shape[1], tensor[2], 0.0f, bits);
    const auto bytes = std::as_bytes(std::span(values));
    tensors.push_back({name, "F32", shape, {bytes.begin(), bytes.end()}});
  }
  std::filesystem::create_directory(folder);
  test::WriteFile(folder / "adapter_config.json", golden["config"].dump());
  test::WriteFile(folder / "adapter_model.safetensors", test::SafetensorsBytes(tensors));
  return folder;
}

test::RunAdapter LoadInto(const LocalModel& model, const std::filesystem::path& folder) {
  const ExecutorLimits& limits = model.executor->limits();
  auto loaded = LoadAdapter(folder, {.model = &model.model,
                                     .dtype = limits.adapter_dtype,
                                     .page_bytes = limits.page_bytes,
                                     .max_rank = limits.adapter_max_rank});
  INFO(loaded.status().ToString());
  REQUIRE(loaded.ok());
  loaded->image->id = AdapterId{1};
  return {loaded->image, 1.0f};
}

// Largest difference to the best logits of each position that PEFT computed.
float MaxError(const json& golden, const std::vector<float>& logits) {
  const size_t vocab = logits.size() / golden["top"].size();
  float error = 0.0f;
  for (size_t t = 0; t < golden["top"].size(); ++t) {
    for (const json& best : golden["top"][t]) {
      error = std::max(error,
                       std::abs(logits[t * vocab + best[0].get<size_t>()] - best[1].get<float>()));
    }
  }
  return error;
}

void CheckCase(const json& golden, int bits, const Golden& base,
               const std::filesystem::path& model_path, const std::filesystem::path& dir) {
  const std::filesystem::path folder = WriteAdapter(golden, bits, dir / "adapter");
  for (const std::string ops : {"reference", "portable"}) {
    LocalModel model = LoadBase(model_path, ops);
    const test::RunAdapter adapter = LoadInto(model, folder);
    for (const int32_t chunk : {64, 7}) {
      INFO(ops << " in chunks of " << chunk);
      CHECK(MaxError(golden, test::AllLogits(*model.executor, base.prompt, chunk, adapter)) <
            1e-3f);
    }
    CHECK(MaxError(golden, test::AllLogits(*model.executor, base.prompt, 64)) > 0.02f);
  }
}

std::vector<std::string> CaseNames(const json& goldens) {
  std::vector<std::string> names;
  for (const auto& [name, value] : goldens.items()) {
    if (value.is_object()) names.push_back(name);
  }
  return names;
}

TEST_CASE("Adapters of every family give PEFT's logits within 1e-3", "[golden]") {
  const json goldens = test::LoadGoldenJson("adapters.json");
  const std::string name = GENERATE_COPY(from_range(CaseNames(goldens)));
  INFO(name);
  const json& golden = goldens[name];
  const Golden base = test::LoadGolden(golden["base"].get<std::string>());
  test::TempDir dir;
  CheckCase(golden, goldens["bits"], base, test::WriteSyntheticModel(base, dir / "model"),
            dir.path());
}

TEST_CASE("PEFT's adapters give the same logits beside bases in GGUF files", "[golden]") {
  const json goldens = test::LoadGoldenJson("adapters.json");
  // Rows of q and k are permuted in the files of llama, mistral, granite and decilm; those of
  // gpt_neox and falcon are regrouped; experts and vectors of gpt_oss have other names.
  const std::string name =
      GENERATE("llama", "mistral", "qwen2", "qwen3", "granite", "decilm", "gpt_neox", "falcon",
               "phi3", "glm4", "gpt2", "gpt_oss", "olmo2", "nemotron");
  INFO(name);
  const json& golden = goldens[name];
  const Golden base = test::LoadGolden(name);
  test::TempDir dir;
  const std::vector<std::string> others = test::GgufModelNames();
  const bool converted = std::find(others.begin(), others.end(), name) != others.end();
  const auto file = converted
                        ? test::WriteGguf(test::LoadGgufModel(name), dir / "model.gguf")
                        : test::WriteSyntheticGguf(base, kernels::DType::kF32, dir / "model.gguf");
  CheckCase(golden, goldens["bits"], base, file, dir.path());
}

}  // namespace
}  // namespace heddle::engine
