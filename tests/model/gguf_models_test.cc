// GGUF files of every family that the format has, as llama.cpp's converter writes them, against the
// same model as a Hugging Face folder.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/model/load.h"
#include "nlohmann/json.hpp"
#include "tests/support/gguf_model.h"
#include "tests/support/greedy_runner.h"
#include "tests/support/synthetic_model.h"
#include "tests/support/temp_dir.h"

namespace heddle {
namespace {

engine::LocalModel Load(const std::filesystem::path& path) {
  engine::LoadOptions options;
  options.cpu.num_threads = 1;
  options.capacity.kv_bytes = 4 << 20;
  options.capacity.max_batch_tokens = 64;
  options.kv_type = "f32";
  auto model = engine::LoadLocalModel(path, options);
  INFO(model.status().ToString());
  REQUIRE(model.ok());
  return std::move(model).value();
}

TEST_CASE("A GGUF file gives the logits of the folder it was made of", "[golden]") {
  const std::string name = GENERATE(from_range(test::GgufModelNames()));
  INFO(name);
  const test::GgufModel model = test::LoadGgufModel(name);
  test::TempDir dir;
  auto folder = Load(test::WriteSyntheticModel(model.folder, dir.path() / "folder"));
  auto file = Load(test::WriteGguf(model, dir.path() / "model.gguf"));
  CHECK(file.model.spec.max_context == folder.model.spec.max_context);
  std::vector<engine::TokenId> prompt;
  for (int32_t i = 0; i < 24; ++i) prompt.push_back((17 * i * i + 29 * i + 11) % 250);
  const auto expected = test::AllLogits(*folder.executor, prompt, 64);
  const auto found = test::AllLogits(*file.executor, prompt, 64);
  REQUIRE(found.size() == expected.size());
  float error = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    error = std::max(error, std::abs(found[i] - expected[i]));
  }
  // Permuted rows are summed in another order.
  CHECK(error < 1e-4f);
}

// Largest difference to the best tokens of each position, and to all logits of the last two.
float LargestError(const test::Golden& golden, const std::vector<float>& logits) {
  const size_t n_tokens = golden.prompt.size();
  const size_t vocab = logits.size() / n_tokens;
  float error = 0.0f;
  for (size_t t = 0; t < n_tokens; ++t) {
    for (const auto& [token, logit] : golden.top[t]) {
      error = std::max(error, std::abs(logits[t * vocab + static_cast<size_t>(token)] - logit));
    }
  }
  for (size_t i = 0; i < 2; ++i) {
    for (size_t v = 0; v < vocab; ++v) {
      error = std::max(error, std::abs(logits[(n_tokens - 2 + i) * vocab + v] - golden.last[i][v]));
    }
  }
  return error;
}

TEST_CASE("Time mixes between Qwen's MLPs, with and without gates and norms of heads", "[golden]") {
  const std::string name = GENERATE("arwkv7", "arwkv7_plain");
  INFO(name);
  const test::GgufModel golden = test::LoadGgufGolden(name);
  test::TempDir dir;
  auto model = Load(test::WriteGguf(golden, dir.path() / "model.gguf"));
  CHECK(model.model.spec.layers[1].attention.wkv.has_norm == (name == "arwkv7"));
  CHECK_FALSE(model.model.spec.layers[1].mlp.token_shift);
  for (const int32_t chunk : {64, 7, 1}) {
    INFO("in chunks of " << chunk);
    CHECK(LargestError(golden.folder,
                       test::AllLogits(*model.executor, golden.folder.prompt, chunk)) < 3e-4f);
  }
}

TEST_CASE("A state that would grow without end is refused by its tensor's name", "[golden]") {
  test::GgufModel model = test::LoadGgufModel("mamba");
  nlohmann::json file = *model.file;
  for (nlohmann::json& tensor : file["file"]) {
    const auto name = tensor.at(0).get<std::string>();
    if (name.ends_with("ssm_a")) tensor.at(1) = nlohmann::json::array();  // values of both signs
  }
  model.file = std::make_shared<const nlohmann::json>(std::move(file));
  test::TempDir dir;
  engine::LoadOptions options;
  options.cpu.num_threads = 1;
  options.capacity.kv_bytes = 4 << 20;
  const absl::Status status =
      engine::LoadLocalModel(test::WriteGguf(model, dir.path() / "model.gguf"), options).status();
  INFO(status.ToString());
  CHECK(absl::IsInvalidArgument(status));
  CHECK(status.message().find("\"blk.0.ssm_a\" has a number above 0") != status.message().npos);
}

}  // namespace
}  // namespace heddle
