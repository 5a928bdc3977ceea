// Random requests that use all of sampling, grammars, branches, prompt scores and adapters, and the
// tiny models of the goldens that they are made for.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/grammar/compiled_grammar.h"
#include "engine/grammar/gbnf.h"
#include "engine/model/draft_model.h"
#include "engine/model/load.h"
#include "nlohmann/json.hpp"
#include "scheduler/request.h"
#include "tests/support/adapter_images.h"
#include "tests/support/goldens.h"
#include "tests/support/synthetic_model.h"
#include "tests/support/temp_dir.h"

namespace heddle::test {

inline constexpr int32_t kRequests = 12;
inline constexpr int32_t kMaxStepTokens = 64;

struct SpeculatedModel {
  TempDir folder;
  std::unique_ptr<engine::LocalExecutor> executor;
  std::shared_ptr<engine::AdapterImage> adapter;  // or null
};

// An adapter of rank 2 on the first layer's down projection.
inline std::shared_ptr<engine::AdapterImage> RandomAdapter(const Golden& golden,
                                                           const engine::ExecutorLimits& limits) {
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal;
  PlainFactors factors{.site = engine::AdapterSite::kDown, .rank = 2};
  factors.a.resize(2 * golden.config->at("intermediate_size").get<size_t>());
  factors.b.resize(2 * golden.config->at("hidden_size").get<size_t>());
  for (float& value : factors.a) value = 0.3f * normal(random);
  for (float& value : factors.b) value = 0.3f * normal(random);
  auto image = MakeAdapterImage({&factors, 1}, limits.adapter_dtype, limits.page_bytes,
                                /*block_rows=*/2, /*seed=*/1);
  image->id = engine::AdapterId{1};
  return image;
}

// Whether the model runs beside itself as its own draft model.
enum class OwnDraft : uint8_t { kNo, kYes };

inline engine::LoadOptions SmallOptions() {
  engine::LoadOptions options;
  options.cpu.num_threads = 2;
  options.capacity.kv_bytes = 4 << 20;
  options.capacity.host_kv_bytes = 1 << 20;
  options.capacity.page_tokens = 8;
  options.capacity.max_batch_tokens = kMaxStepTokens;
  return options;
}

inline void LoadExecutor(const std::filesystem::path& path, const engine::LoadOptions& options,
                         SpeculatedModel* model) {
  auto loaded = engine::LoadLocalModel(path, options);
  INFO(loaded.status().ToString());
  REQUIRE(loaded.ok());
  model->executor = std::move(loaded->executor);
  // No draw is left out for want of a mask, however busy the machine is.
  model->executor->set_mask_patience(
      {.beside_others = std::chrono::seconds(60), .alone = std::chrono::seconds(60)});
}

inline void LoadSpeculated(const std::string& name, SpeculatedModel* model,
                           OwnDraft own_draft = OwnDraft::kNo, engine::Layout layout = {}) {
  engine::LoadOptions options = SmallOptions();
  options.layout = std::move(layout);
  const bool has_adapter = name == "llama";
  if (has_adapter) options.capacity.adapter_max_rank = 4;
  const Golden golden = LoadGolden(name);
  for (const char* key :
       {"linear_num_key_heads", "mamba_d_state", "state_size", "decay_low_rank_dim"}) {
    if (golden.config->contains(key)) options.capacity.page_tokens = 16;
  }
  const std::filesystem::path path =
      golden.gguf
          ? WriteSyntheticGguf(golden, kernels::DType::kQ4_0, model->folder.path() / "model.gguf")
          : WriteSyntheticModel(golden, model->folder.path());
  if (own_draft == OwnDraft::kYes) {
    options.open_draft = [path](const engine::Checkpoint&, const engine::ModelDescription&) {
      return engine::OpenDraftModelAs(path);
    };
  }
  LoadExecutor(path, options, model);
  if (has_adapter) model->adapter = RandomAdapter(golden, model->executor->limits());
}

// Letters, of which token 3 is "a"; 2 ends a text. Behind an "a", and behind "i" or "j", there is
// no choice.
inline std::shared_ptr<engine::grammar::CompiledGrammar> Letters(int32_t vocab) {
  static const std::string kLetters = "abcdefghijkl";
  const auto text_of = [](engine::TokenId id) {
    const auto letter = static_cast<size_t>(id - 3);
    return std::string_view(kLetters).substr(std::min(letter, kLetters.size()), 1);
  };
  const auto encode = [](std::string_view text) {
    std::vector<engine::TokenId> tokens;
    for (char letter : text) tokens.push_back(3 + letter - 'a');
    return tokens;
  };
  auto vocabulary = std::make_shared<engine::grammar::Vocabulary>(vocab, text_of, encode);
  return std::make_shared<engine::grammar::CompiledGrammar>(
      *engine::grammar::Compile(
          *engine::grammar::ParseGbnf(R"(root ::= ("a" "fgh" | [bcde] | [ij] "k")+ "l" "l")")),
      vocabulary, std::vector<engine::TokenId>{2});
}

class RandomRequests {
 public:
  RandomRequests(uint64_t seed, const SpeculatedModel& model)
      : random_(seed), model_(model), vocab_(model.executor->limits().vocab) {}

  std::vector<scheduler::GenerationRequest> Make() {
    std::vector<engine::TokenId> common;
    for (int i = Between(8, 40); i > 0; --i) common.push_back(Between(3, vocab_ - 1));
    std::vector<scheduler::GenerationRequest> requests;
    for (int32_t i = 1; i <= kRequests; ++i) {
      scheduler::GenerationRequest request;
      request.id = scheduler::RequestId{static_cast<uint64_t>(i)};
      if (Between(0, 1)) request.prompt = common;
      for (int t = Between(1, 20); t > 0; --t) request.prompt.push_back(Between(3, vocab_ - 1));
      request.max_tokens = Between(2, 40);
      if (Between(0, 3) == 0) request.num_branches = Between(2, 3);
      if (Between(0, 5) == 0) request.prompt_logprobs = Between(0, 2);
      if (Between(0, 3) == 0) request.stop_tokens = {Between(3, vocab_ - 1), 2};
      SetSampling(&request.sampling);
      if (Between(0, 3) == 0) SetGrammar(&request);
      if (model_.adapter != nullptr && Between(0, 2) == 0) {
        request.adapter = {.id = model_.adapter->id,
                           .num_pages = model_.adapter->num_pages,
                           .image = model_.adapter};
        request.cache_space = 1;
      }
      requests.push_back(std::move(request));
    }
    return requests;
  }

  int32_t Between(int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random_);
  }

 private:
  bool OneIn(int32_t n) { return Between(1, n) == 1; }
  float Part() { return static_cast<float>(Between(1, 99)) / 100; }

  void SetSampling(engine::SamplingParams* sampling) {
    sampling->seed = random_();
    sampling->num_logprobs = Between(0, 3);
    sampling->temperature = OneIn(3) ? 0.0f : 2 * Part();
    if (OneIn(5)) sampling->top_k = Between(1, 50);
    if (OneIn(5)) sampling->top_p = Part();
    if (OneIn(8)) sampling->min_p = Part() / 4;
    if (OneIn(8)) sampling->typical_p = Part();
    if (OneIn(8)) sampling->top_n_sigma = 2 * Part();
    if (OneIn(8)) {
      sampling->xtc_probability = Part();
      sampling->xtc_threshold = Part() / 3;
    }
    if (OneIn(4)) sampling->repetition_penalty = 1 + Part();
    if (OneIn(4)) sampling->presence_penalty = Part();
    if (OneIn(4)) sampling->frequency_penalty = Part();
    if (OneIn(4)) sampling->dry_multiplier = 2 * Part();
    if (OneIn(4)) sampling->logit_bias = {{Between(3, vocab_ - 1), 20 * Part()}, {5, -3.0f}};
    if (OneIn(4)) {
      sampling->min_tokens = Between(1, 20);
      sampling->min_tokens_banned = {2, Between(3, vocab_ - 1)};
    }
    if (OneIn(4)) sampling->bad_words = {{20, 21}, {30}, {7, 8, 9}};
  }

  // Half of the answers want no log-probabilities: the grammar forces tokens there, undrawn.
  void SetGrammar(scheduler::GenerationRequest* request) {
    request->grammar = Letters(vocab_);
    request->stop_tokens = {2};
    if (OneIn(2)) request->sampling.num_logprobs = -1;
  }

  std::mt19937_64 random_;
  const SpeculatedModel& model_;
  const int32_t vocab_;
};

}  // namespace heddle::test
