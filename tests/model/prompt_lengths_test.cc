// Every family with state in its layers over short and long prompts: the 40 tokens that
// transformers appends greedily, and their log-probabilities (tests/golden/make_length_goldens.py).
// The smallest of the models with unusual settings that run every night, too, over short prompts
// (tests/golden/random_models.py).
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/model/load.h"
#include "nlohmann/json.hpp"
#include "tests/support/goldens.h"
#include "tests/support/greedy_runner.h"
#include "tests/support/synthetic_model.h"
#include "tests/support/temp_dir.h"

namespace heddle {
namespace {

using engine::TokenId;
using nlohmann::json;

// The bound for folders in F32.
constexpr float kTolerance = 2e-4f;

struct LengthCase {
  test::Golden model;
  json texts;  // [prompt's length, tokens, log-probabilities their spreads] each
};

LengthCase LoadCase(const std::string& file, size_t index) {
  const json entry = test::LoadGoldenJson(file).at("cases").at(index);
  LengthCase found;
  found.model.name = entry.at("name");
  found.model.config = std::make_shared<const json>(entry.at("config"));
  found.model.dtype = "F32";
  found.model.bits = entry.at("bits");
  for (const json& tensor : entry.at("tensors")) {
    found.model.tensors.push_back({tensor.at(0), tensor.at(1), tensor.at(2), tensor.at(3)});
  }
  found.texts = entry.at("texts");
  return found;
}

std::vector<TokenId> PromptOf(int32_t length, int32_t vocab) {
  std::vector<TokenId> prompt;
  for (int32_t i = 0; i < length; ++i) {
    prompt.push_back(static_cast<TokenId>((17 * i * i + 29 * i + 11 * length) % vocab));
  }
  return prompt;
}

std::unique_ptr<engine::LocalExecutor> Load(const LengthCase& golden,
                                            const std::filesystem::path& folder,
                                            const std::string& isa) {
  engine::LoadOptions options;
  options.cpu.num_threads = 1;
  options.cpu.isa = isa;
  options.capacity.kv_bytes = 32 << 20;
  options.capacity.max_batch_tokens = 128;
  options.kv_type = "f32";
  auto model = engine::LoadLocalModel(test::WriteSyntheticModel(golden.model, folder), options);
  INFO(model.status().ToString());
  REQUIRE(model.ok());
  return std::move(model->executor);
}

// The log-probability of the row's best token, and which one that is.
std::pair<TokenId, float> Best(const float* row, int32_t vocab) {
  const float* best = std::max_element(row, row + vocab);
  double sum = 0.0;
  for (int32_t v = 0; v < vocab; ++v) sum += std::exp(double{row[v]} - *best);
  return {static_cast<TokenId>(best - row), static_cast<float>(-std::log(sum))};
}

TEST_CASE("Greedy texts behind prompts of 1 to 700 tokens are transformers'", "[golden]") {
  const std::string file = GENERATE("prompt_lengths.json", "random_models.json");
  const size_t count = test::LoadGoldenJson(file).at("cases").size();
  const auto index = GENERATE_COPY(range(size_t{0}, count));
  const std::string isa = GENERATE("portable", "auto");
  const LengthCase golden = LoadCase(file, index);
  test::TempDir dir;
  auto executor = Load(golden, dir.path(), isa);
  const int32_t vocab = executor->limits().vocab;
  for (const json& text : golden.texts) {
    const auto length = text.at(0).get<int32_t>();
    const auto tokens = text.at(1).get<std::vector<TokenId>>();
    const auto logprobs = text.at(2).get<std::vector<std::pair<float, float>>>();
    std::vector<TokenId> all = PromptOf(length, vocab);
    all.insert(all.end(), tokens.begin(), tokens.end() - 1);
    const std::vector<float> logits = test::AllLogits(*executor, all, /*prefill_chunk=*/96);
    float error = 0.0f;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const size_t row = static_cast<size_t>(length) - 1 + i;
      const auto [token, logprob] = Best(&logits[row * static_cast<size_t>(vocab)], vocab);
      INFO(golden.model.name << " on " << isa << ", " << length << " tokens, step " << i);
      CHECK(token == tokens[i]);
      // Rounding may move a row here as far as it moves transformers': some are ill-conditioned.
      const auto [expected, spread] = logprobs[i];
      error = std::max(error, std::abs(logprob - expected) - spread);
    }
    INFO(golden.model.name << " on " << isa << ", " << length << " tokens");
    CHECK(error < kTolerance);
    // Tokens that are read one by one give the same as those of a prompt.
    if (length > 100) continue;
    const auto count_of_text = static_cast<int32_t>(tokens.size());
    const auto run =
        test::RunGreedy(*executor, PromptOf(length, vocab), {.max_tokens = count_of_text});
    CHECK(run.ids == tokens);
  }
}

}  // namespace
}  // namespace heddle
