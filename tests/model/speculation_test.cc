// Speculation changes no output: requests with all kinds of sampling, grammars, branches, adapters,
// prompt scores, shared prefixes, preemption and cancellation get, with drafts that are partly
// right and partly wrong, the tokens and log-probabilities that they get alone and without drafts,
// bit for bit on the CPU. HEDDLE_SPECULATION_ROUNDS sets the number of loads for each model
// (default 8), HEDDLE_SPECULATION_SEED the first seed.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "tests/heads/draft_goldens.h"
#include "tests/model/random_requests.h"
#include "tests/model/speculated_load.h"

namespace heddle::test {
namespace {

int64_t EnvOr(const char* name, int64_t fallback) {
  const char* value = std::getenv(name);
  return value ? std::atoll(value) : fallback;
}

TEST_CASE("Speculation changes no token and no log-probability", "[golden]") {
  const std::string name =
      GENERATE("llama", "mistral_window", "gemma2", "gpt_oss", "llama_q4_0", "mixtral", "lfm2",
               "qwen3_5", "jamba", "deepseek_v32", "rwkv7", "phi4flash");
  INFO(name);
  SpeculatedModel model;
  LoadSpeculated(name, &model);
  const int64_t rounds = EnvOr("HEDDLE_SPECULATION_ROUNDS", 8);
  const auto first_seed = static_cast<uint64_t>(EnvOr("HEDDLE_SPECULATION_SEED", 1));
  scheduler::SchedulerStats sum;
  for (int64_t round = 0; round < rounds; ++round) {
    const uint64_t seed = first_seed + static_cast<uint64_t>(round);
    INFO("HEDDLE_SPECULATION_SEED=" << seed);
    RandomRequests random(seed, model);
    const std::vector<scheduler::GenerationRequest> requests = random.Make();
    SpeculatedLoad plain(model.executor.get(), PlainOptions(model.executor->limits()), nullptr,
                         seed);
    plain.Run(requests, 0, 0);
    REQUIRE(plain.stats().drafted_tokens == 0);
    SpeculatedLoad load(model.executor.get(), TightOptions(model, &random), &plain.outcomes(),
                        seed);
    load.Run(requests, random.Between(0, 3), random.Between(0, 1) * random.Between(0, 20));
    CheckSame(requests, plain.outcomes(), load.outcomes());
    const scheduler::SchedulerStats stats = load.stats();
    sum.drafted_tokens += stats.drafted_tokens;
    sum.accepted_tokens += stats.accepted_tokens;
    sum.forced_tokens += stats.forced_tokens;
    sum.preemptions += stats.preemptions;
    sum.cached_tokens += stats.cached_tokens;
  }
  INFO("drafted " << sum.drafted_tokens << ", accepted " << sum.accepted_tokens << ", forced "
                  << sum.forced_tokens << ", preempted " << sum.preemptions << ", cached "
                  << sum.cached_tokens);
  // The load exercises what the test is about.
  CHECK(sum.accepted_tokens > rounds * 50);
  CHECK(sum.drafted_tokens - sum.accepted_tokens > rounds * 50);
  CHECK(sum.forced_tokens > rounds);
  // Without keys a text holds two pages in each group, however long it is: few are preempted.
  CHECK(sum.preemptions >= (name == "rwkv7" ? 1 : rounds / 4));
  CHECK(sum.cached_tokens > rounds * 10);
}

struct NetworkLoads {
  scheduler::SchedulerStats sum;
  int64_t num_guesses = 0;
  int64_t num_ahead = 0;
  std::set<engine::TokenId> tokens_guessed;
};

// Loads with the guesses of the drafter beside the model, each against its requests alone.
NetworkLoads CheckNetworkLoads(const SpeculatedModel& model) {
  const int64_t rounds = EnvOr("HEDDLE_SPECULATION_ROUNDS", 4);
  const auto first_seed = static_cast<uint64_t>(EnvOr("HEDDLE_SPECULATION_SEED", 1));
  NetworkLoads all;
  for (int64_t round = 0; round < rounds; ++round) {
    const uint64_t seed = first_seed + static_cast<uint64_t>(round);
    INFO("HEDDLE_SPECULATION_SEED=" << seed);
    RandomRequests random(seed, model);
    const std::vector<scheduler::GenerationRequest> requests = random.Make();
    SpeculatedLoad plain(model.executor.get(), PlainOptions(model.executor->limits()), nullptr,
                         seed);
    plain.Run(requests, 0, 0);
    SpeculatedLoad load(model.executor.get(), TightOptions(model, &random), nullptr, seed);
    load.DraftWithNetwork();
    load.Run(requests, random.Between(0, 3), random.Between(0, 1) * random.Between(0, 20));
    CheckSame(requests, plain.outcomes(), load.outcomes());
    const scheduler::SchedulerStats stats = load.stats();
    all.sum.drafted_tokens += stats.drafted_tokens;
    all.sum.accepted_tokens += stats.accepted_tokens;
    all.sum.preemptions += stats.preemptions;
    all.sum.cached_tokens += stats.cached_tokens;
    all.num_guesses += load.num_guesses();
    all.num_ahead += load.num_ahead();
    all.tokens_guessed.insert(load.tokens_guessed().begin(), load.tokens_guessed().end());
  }
  CHECK(all.sum.drafted_tokens > rounds * 50);
  CHECK(all.sum.cached_tokens + all.sum.preemptions > 0);
  return all;
}

// A model's guesses of itself are right wherever it has seen all of the sequence, and draws with
// the same numbers: only where the KV of the drafter is stale, or a page of it is lost, is it
// wrong.
TEST_CASE("A model as its own draft model guesses what it draws, and changes nothing", "[golden]") {
  using Case = std::tuple<std::string, int32_t, int32_t>;
  const auto [name, tp, pp] = GENERATE(values<Case>({{"mistral", 1, 1},
                                                     {"mistral_window", 1, 1},
                                                     {"gemma2", 1, 1},
                                                     {"llama_q4_0", 1, 1},
                                                     {"llama", 1, 1},
                                                     {"mistral", 3, 1},
                                                     {"gemma2", 2, 1},
                                                     {"mistral", 1, 2},
                                                     {"mistral_window", 1, 2},
                                                     {"llama_q4_0", 1, 3},
                                                     {"gemma2", 2, 2}}));
  INFO(name << " on " << tp << " ranks in each of " << pp << " stages");
  SpeculatedModel model;
  LoadSpeculated(name, &model, OwnDraft::kYes, {.tp = tp, .pp = pp});
  const NetworkLoads loads = CheckNetworkLoads(model);
  const scheduler::SchedulerStats& sum = loads.sum;
  INFO("guessed " << loads.num_guesses << ", drafted " << sum.drafted_tokens << ", accepted "
                  << sum.accepted_tokens << ", preempted " << sum.preemptions << ", cached "
                  << sum.cached_tokens);
  CHECK((loads.num_ahead > 20) == (pp > 1));
  // The draft model runs without the adapters that some requests have, and a window may have passed
  // what it has to catch up with.
  const bool has_windows = model.executor->limits().windows[0] > 0;
  const double least = model.adapter != nullptr ? 0.3 : has_windows ? 0.9 : 0.98;
  CHECK(static_cast<double>(sum.accepted_tokens) >=
        least * static_cast<double>(sum.drafted_tokens));
}

// A model whose tokens are numbered otherwise, and which is told what its tokens are in the model.
struct RenumberedModel {
  std::filesystem::path path;
  engine::CommonTokens common;
};

// Token i of the model is token vocab - 1 - i of the files. One token in `left_out_of` cannot
// be guessed; 0: all can.
RenumberedModel WriteRenumbered(const std::string& name, const std::filesystem::path& folder,
                                int32_t left_out_of) {
  const Golden golden = LoadGolden(name);
  RenumberedModel renumbered{.path = WriteSyntheticModel(golden, folder), .common = {}};
  const auto vocab = golden.config->at("vocab_size").get<int32_t>();
  engine::CommonTokens& common = renumbered.common;
  common.guessable.resize((static_cast<size_t>(vocab) + 31) / 32);
  for (int32_t i = 0; i < vocab; ++i) {
    common.draft_ids.push_back(vocab - 1 - i);
    if (left_out_of > 0 && i % left_out_of == 0) continue;
    common.guessable[static_cast<size_t>(i) / 32] |= 1u << (i % 32);
    ++common.num_guessable;
  }
  std::vector<TensorToWrite> tensors = SyntheticTensors(golden);
  for (TensorToWrite& tensor : tensors) {
    if (tensor.name != "model.embed_tokens.weight" && tensor.name != "lm_head.weight") continue;
    const std::vector<std::byte> rows = tensor.data;
    const size_t row_bytes = rows.size() / static_cast<size_t>(vocab);
    for (size_t i = 0; i < common.draft_ids.size(); ++i) {
      std::copy_n(rows.begin() + static_cast<ptrdiff_t>(i * row_bytes), row_bytes,
                  tensor.data.begin() +
                      static_cast<ptrdiff_t>(static_cast<size_t>(common.draft_ids[i]) * row_bytes));
    }
  }
  WriteFile(folder / "model.safetensors", SafetensorsBytes(tensors));
  return renumbered;
}

// Guesses are right everywhere only if each token is read and guessed as what it is, and drawn with
// the numbers, penalties and grammar of its place.
TEST_CASE("A model with other token ids guesses what the same model draws", "[golden]") {
  const std::string name = GENERATE("mistral", "gemma2", "qwen2");
  const int32_t left_out_of = GENERATE(0, 3);
  INFO(name << ", left out is one of " << left_out_of);
  SpeculatedModel model;
  const std::filesystem::path path =
      WriteSyntheticModel(LoadGolden(name), model.folder.path() / "model");
  const RenumberedModel draft = WriteRenumbered(name, model.folder.path() / "draft", left_out_of);
  engine::LoadOptions options = SmallOptions();
  options.open_draft = [&](const engine::Checkpoint&, const engine::ModelDescription&) {
    return engine::OpenDraftModelAs(draft.path, &draft.common);
  };
  LoadExecutor(path, options, &model);
  const NetworkLoads loads = CheckNetworkLoads(model);
  const scheduler::SchedulerStats& sum = loads.sum;
  INFO("drafted " << sum.drafted_tokens << ", accepted " << sum.accepted_tokens);
  CHECK(loads.tokens_guessed.size() > 20);
  for (const engine::TokenId token : loads.tokens_guessed) {
    if (left_out_of > 0) CHECK(token % left_out_of != 0);
  }
  // Behind a token that cannot be guessed another one is guessed, and so is what follows it.
  const double least = left_out_of > 0 ? 0.1 : 0.98;
  CHECK(static_cast<double>(sum.accepted_tokens) >=
        least * static_cast<double>(sum.drafted_tokens));
}

TEST_CASE("Rows of a quantised table are chosen as well", "[golden]") {
  SpeculatedModel model;
  const Golden golden = LoadGolden("llama_q4_0");
  const std::filesystem::path path =
      WriteSyntheticGguf(golden, kernels::DType::kQ4_0, model.folder.path() / "model.gguf");
  const auto vocab = golden.config->at("vocab_size").get<int32_t>();
  engine::CommonTokens common;
  for (int32_t i = 0; i < vocab; ++i) common.draft_ids.push_back(i);
  common.guessable.assign((static_cast<size_t>(vocab) + 31) / 32, ~uint32_t{0});
  engine::LoadOptions options = SmallOptions();
  options.open_draft = [&](const engine::Checkpoint&, const engine::ModelDescription&) {
    return engine::OpenDraftModelAs(path, &common);
  };
  LoadExecutor(path, options, &model);
  const scheduler::SchedulerStats sum = CheckNetworkLoads(model).sum;
  CHECK(static_cast<double>(sum.accepted_tokens) >= 0.98 * static_cast<double>(sum.drafted_tokens));
}

// Random heads guess wrong. That they guess at all, for nearly all sequences, says that they have
// seen their hidden states.
TEST_CASE("Heads that read hidden states change no token and no log-probability", "[golden]") {
  const std::string name = GENERATE(from_range(DraftGoldenNames()));
  const auto [tp, pp] = GENERATE(table<int32_t, int32_t>({{1, 1}, {2, 1}, {1, 2}, {2, 2}, {1, 4}}));
  INFO(name << " on " << tp << " ranks in each of " << pp << " stages");
  const DraftGolden golden = LoadDraftGolden(name);
  SpeculatedModel model;
  const std::filesystem::path path =
      WriteSyntheticModel(golden.model, model.folder.path() / "model");
  const std::filesystem::path files = model.folder.path() / "network";
  if (!golden.is_mtp()) WriteSyntheticModel(golden.files, files);
  engine::LoadOptions options = SmallOptions();
  options.layout = {.tp = tp, .pp = pp};
  options.open_draft = [&](const engine::Checkpoint& target,
                           const engine::ModelDescription& description) {
    return OpenNetwork(golden, files, target, description);
  };
  LoadExecutor(path, options, &model);
  // A block of these DFlash networks has four guesses; others are asked for up to eight.
  // In a pipeline more steps are there that the drafter is not shown, and pages are given back
  // later.
  const bool is_dflash = golden.name.starts_with("dflash");
  const int64_t least = pp == 1 ? (is_dflash ? 300 : 500) : (is_dflash ? 200 : 400);
  const NetworkLoads loads = CheckNetworkLoads(model);
  CHECK(loads.num_guesses > least);
  CHECK((loads.num_ahead > 20) == (pp > 1));
}

}  // namespace
}  // namespace heddle::test
