// Speculation changes no output: requests with all kinds of sampling, grammars, branches, adapters,
// prompt scores, shared prefixes, preemption and cancellation get, with drafts that are partly
// right and partly wrong, the tokens and log-probabilities that they get alone and without drafts,
// bit for bit on the CPU. HEDDLE_SPECULATION_ROUNDS sets the number of loads for each model
// (default 8), HEDDLE_SPECULATION_SEED the first seed.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/grammar/compiled_grammar.h"
#include "engine/grammar/gbnf.h"
#include "engine/model/draft_model.h"
#include "engine/model/load.h"
#include "nlohmann/json.hpp"
#include "scheduler/scheduler.h"
#include "tests/heads/draft_goldens.h"
#include "tests/support/adapter_images.h"
#include "tests/support/goldens.h"
#include "tests/support/synthetic_model.h"
#include "tests/support/temp_dir.h"

namespace heddle {
namespace {

using engine::SampledToken;
using engine::TokenId;
using scheduler::GenerationRequest;
using scheduler::RequestId;
using scheduler::Scheduler;
using scheduler::SchedulerOptions;

constexpr int32_t kRequests = 12;
constexpr int32_t kMaxStepTokens = 64;

int64_t EnvOr(const char* name, int64_t fallback) {
  const char* value = std::getenv(name);
  return value ? std::atoll(value) : fallback;
}

// The report on a token, or on a prompt's score.
struct Reported {
  TokenId token;
  float logprob;
  std::vector<std::pair<TokenId, float>> top;
  friend bool operator==(const Reported&, const Reported&) = default;

  static Reported Of(const SampledToken& sampled) {
    Reported out{sampled.token, sampled.logprob, {}};
    for (const engine::TokenLogprob& top : sampled.top)
      out.top.emplace_back(top.token, top.logprob);
    return out;
  }
};

struct Outcome {
  std::vector<Reported> tokens;
  std::vector<Reported> scores;
  bool cancelled = false;
};
using Outcomes = std::map<std::pair<uint64_t, int32_t>, Outcome>;

struct Model {
  test::TempDir folder;
  std::unique_ptr<engine::LocalExecutor> executor;
  std::shared_ptr<engine::AdapterImage> adapter;  // or null
};

// An adapter of rank 2 on the first layer's down projection.
std::shared_ptr<engine::AdapterImage> RandomAdapter(const test::Golden& golden,
                                                    const engine::ExecutorLimits& limits) {
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal;
  test::PlainFactors factors{.site = engine::AdapterSite::kDown, .rank = 2};
  factors.a.resize(2 * golden.config->at("intermediate_size").get<size_t>());
  factors.b.resize(2 * golden.config->at("hidden_size").get<size_t>());
  for (float& value : factors.a) value = 0.3f * normal(random);
  for (float& value : factors.b) value = 0.3f * normal(random);
  auto image = test::MakeAdapterImage({&factors, 1}, limits.adapter_dtype, limits.page_bytes,
                                      /*block_rows=*/2, /*seed=*/1);
  image->id = engine::AdapterId{1};
  return image;
}

// Whether the model runs beside itself as its own draft model.
enum class OwnDraft : uint8_t { kNo, kYes };

engine::LoadOptions SmallOptions() {
  engine::LoadOptions options;
  options.cpu.num_threads = 2;
  options.capacity.kv_bytes = 4 << 20;
  options.capacity.host_kv_bytes = 1 << 20;
  options.capacity.page_tokens = 8;
  options.capacity.max_batch_tokens = kMaxStepTokens;
  return options;
}

void LoadExecutor(const std::filesystem::path& path, const engine::LoadOptions& options,
                  Model* model) {
  auto loaded = engine::LoadLocalModel(path, options);
  INFO(loaded.status().ToString());
  REQUIRE(loaded.ok());
  model->executor = std::move(loaded->executor);
  // No draw is left out for want of a mask, however busy the machine is.
  model->executor->set_mask_patience(
      {.beside_others = std::chrono::seconds(60), .alone = std::chrono::seconds(60)});
}

void Load(const std::string& name, Model* model, OwnDraft own_draft = OwnDraft::kNo) {
  engine::LoadOptions options = SmallOptions();
  const bool has_adapter = name == "llama";
  if (has_adapter) options.capacity.adapter_max_rank = 4;
  const test::Golden golden = test::LoadGolden(name);
  const std::filesystem::path path =
      golden.gguf ? test::WriteSyntheticGguf(golden, kernels::DType::kQ4_0,
                                             model->folder.path() / "model.gguf")
                  : test::WriteSyntheticModel(golden, model->folder.path());
  if (own_draft == OwnDraft::kYes) {
    options.open_draft = [path](const engine::Checkpoint& checkpoint,
                                const engine::ModelDescription& description) {
      return engine::OpenDraftModel(path, checkpoint, description, engine::VocabularyCheck::kSize);
    };
  }
  LoadExecutor(path, options, model);
  if (has_adapter) model->adapter = RandomAdapter(golden, model->executor->limits());
}

// Letters, of which token 3 is "a"; 2 ends a text. Behind an "a", and behind "i" or "j", there is
// no choice.
std::shared_ptr<engine::grammar::CompiledGrammar> Letters(int32_t vocab) {
  static const std::string kLetters = "abcdefghijkl";
  const auto text_of = [](TokenId id) {
    const auto letter = static_cast<size_t>(id - 3);
    return std::string_view(kLetters).substr(std::min(letter, kLetters.size()), 1);
  };
  const auto encode = [](std::string_view text) {
    std::vector<TokenId> tokens;
    for (char letter : text) tokens.push_back(3 + letter - 'a');
    return tokens;
  };
  auto vocabulary = std::make_shared<engine::grammar::Vocabulary>(vocab, text_of, encode);
  return std::make_shared<engine::grammar::CompiledGrammar>(
      *engine::grammar::Compile(
          *engine::grammar::ParseGbnf(R"(root ::= ("a" "fgh" | [bcde] | [ij] "k")+ "l" "l")")),
      vocabulary, std::vector<TokenId>{2});
}

class RandomRequests {
 public:
  RandomRequests(uint64_t seed, const Model& model)
      : random_(seed), model_(model), vocab_(model.executor->limits().vocab) {}

  std::vector<GenerationRequest> Make() {
    std::vector<TokenId> common;
    for (int i = Between(8, 40); i > 0; --i) common.push_back(Between(3, vocab_ - 1));
    std::vector<GenerationRequest> requests;
    for (int32_t i = 1; i <= kRequests; ++i) {
      GenerationRequest request;
      request.id = RequestId{static_cast<uint64_t>(i)};
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
  void SetGrammar(GenerationRequest* request) {
    request->grammar = Letters(vocab_);
    request->stop_tokens = {2};
    if (OneIn(2)) request->sampling.num_logprobs = -1;
  }

  std::mt19937_64 random_;
  const Model& model_;
  const int32_t vocab_;
};

// A load of one executor: requests arrive `gap` steps apart. With `known`, the sequences get drafts
// from these answers, with every fourth token or so wrong.
class SpeculatedLoad {
 public:
  SpeculatedLoad(engine::LocalExecutor* executor, const SchedulerOptions& options,
                 const Outcomes* known, uint64_t seed)
      : executor_(*executor), scheduler_(options), known_(known), random_(seed) {}

  void Run(const std::vector<GenerationRequest>& requests, int gap, int32_t cancels_per_100_steps) {
    cancels_per_100_steps_ = cancels_per_100_steps;
    for (const GenerationRequest& request : requests) {
      scheduler_.Add(request, now_us_);
      for (int i = 0; i < gap; ++i) Step();
    }
    while (Step()) {
    }
  }
  // From now on drafts are those of the drafter beside the model.
  void DraftWithNetwork() { drafts_ahead_ = true; }
  int64_t num_guesses() const { return num_guesses_; }
  const Outcomes& outcomes() const { return outcomes_; }
  scheduler::SchedulerStats stats() const { return scheduler_.stats(); }

 private:
  int32_t Below(int32_t n) { return std::uniform_int_distribution<int32_t>(0, n - 1)(random_); }

  // Offers what the drafter beside the model has guessed. Now and then it is not asked, so that it
  // has to catch up.
  void DraftAhead() {
    scheduler_.ListDraftable(&candidates_);
    for (const scheduler::DraftCandidate& candidate : candidates_) {
      const auto found = guessed_.find(candidate.id);
      if (found == guessed_.end()) continue;
      if (found->second.num_generated != candidate.generated.size()) continue;
      scheduler_.Offer(candidate.id, found->second.tokens);
    }
    guessed_.clear();
    if (Below(5) == 0) return;
    scheduler_.SetAhead({.tokens = 1 + Below(8), .feeds_drafter = true});
  }

  // Counts for sequences that the step has not ended.
  void TakeGuesses() {
    REQUIRE(result_.draft_failure.empty());
    for (const engine::GuessedTokens& guessed : result_.guessed) {
      Guessed& kept = guessed_[guessed.id];
      for (int32_t i = 0; i < guessed.num_guesses; ++i) {
        kept.tokens.push_back(result_.guesses.at(guessed.guess_begin + i).token);
      }
      num_guesses_ += guessed.num_guesses;
    }
    scheduler_.ListDraftable(&candidates_);
    for (const scheduler::DraftCandidate& candidate : candidates_) {
      const auto found = guessed_.find(candidate.id);
      if (found != guessed_.end()) found->second.num_generated = candidate.generated.size();
    }
  }

  void Draft() {
    if (drafts_ahead_) return DraftAhead();
    if (known_ == nullptr) return;
    scheduler_.ListDraftable(&candidates_);
    for (const scheduler::DraftCandidate& candidate : candidates_) {
      const auto answer =
          known_->find({static_cast<uint64_t>(candidate.request->id), candidate.branch});
      if (answer == known_->end()) continue;
      std::vector<TokenId> draft;
      const int32_t length = 1 + Below(10);
      for (size_t at = candidate.generated.size();
           at < answer->second.tokens.size() && draft.size() < static_cast<size_t>(length); ++at) {
        const TokenId token = answer->second.tokens[at].token;
        draft.push_back(Below(4) == 0 ? Below(executor_.limits().vocab) : token);
      }
      while (draft.size() < static_cast<size_t>(length)) {  // behind the answer's end
        draft.push_back(Below(executor_.limits().vocab));
      }
      scheduler_.Offer(candidate.id, draft);
    }
  }

  bool Step() {
    ++now_us_;
    Draft();
    scheduler_.Plan(now_us_, &plan_);
    if (plan_.empty()) return false;
    REQUIRE(executor_.Submit(plan_, scheduler_.locals()).ok());
    REQUIRE(executor_.Wait(&result_).ok());
    result_.timing.swap_ns = 0;  // steps take no time here: swaps must not seem to
    std::vector<scheduler::SequenceEvent> events;
    if (Below(100) < cancels_per_100_steps_) {
      scheduler_.Cancel(RequestId{static_cast<uint64_t>(1 + Below(kRequests))},
                        scheduler::FinishReason::kCancelled, &events);
    }
    scheduler_.Commit(result_, now_us_, &events);
    REQUIRE(scheduler_.CheckIntegrity().ok());
    for (const scheduler::SequenceEvent& event : events) Book(event);
    if (drafts_ahead_) TakeGuesses();
    return true;
  }

  void Book(const scheduler::SequenceEvent& event) {
    Outcome& outcome = outcomes_[{static_cast<uint64_t>(event.request), event.branch}];
    for (int32_t i = 0; i < event.num_tokens; ++i) {
      outcome.tokens.push_back(Reported::Of(result_.tokens.at(event.token_begin + i)));
    }
    for (int32_t i = 0; i < event.num_scores; ++i) {
      outcome.scores.push_back(Reported::Of(result_.scores.at(event.score_begin + i)));
    }
    REQUIRE(event.reason != scheduler::FinishReason::kError);
    outcome.cancelled |= event.reason == scheduler::FinishReason::kCancelled;
  }

  engine::LocalExecutor& executor_;
  Scheduler scheduler_;
  const Outcomes* known_;
  std::mt19937_64 random_;
  std::vector<scheduler::DraftCandidate> candidates_;
  engine::StepPlan plan_;
  engine::StepResult result_;
  Outcomes outcomes_;
  int64_t now_us_ = 0;
  int32_t cancels_per_100_steps_ = 0;
  struct Guessed {
    size_t num_generated = 0;
    std::vector<TokenId> tokens;
  };
  bool drafts_ahead_ = false;
  std::map<engine::SequenceId, Guessed> guessed_;
  int64_t num_guesses_ = 0;
};

SchedulerOptions PlainOptions(const engine::ExecutorLimits& limits) {
  return {.num_pages = limits.num_pages,
          .page_tokens = limits.page_tokens,
          .max_context = limits.max_context,
          .windows = limits.windows,
          .window_grain = limits.window_grain,
          .max_step_tokens = limits.max_batch_tokens,
          .max_step_seqs = 16,
          .max_draft_tokens = limits.max_draft_tokens,
          .prefix_cache = false,
          .adapter_slots = limits.adapter_slots};
}

// Room for the longest request and little more, so that some are preempted.
SchedulerOptions TightOptions(const Model& model, RandomRequests* random) {
  const engine::ExecutorLimits& limits = model.executor->limits();
  SchedulerOptions options = PlainOptions(limits);
  options.num_pages = static_cast<int32_t>(options.page_rule().MostPages(104, limits.windows));
  options.num_pages += random->Between(1, 10);
  if (model.adapter != nullptr) options.num_pages += model.adapter->num_pages;
  options.num_pages = std::min(options.num_pages, limits.num_pages);
  options.num_host_pages = random->Between(0, 1) * std::min(40, limits.num_host_pages);
  options.max_step_tokens = random->Between(16, kMaxStepTokens);
  options.prefix_cache = random->Between(0, 3) > 0;
  return options;
}

// Log-probabilities are compared where they are asked for.
std::vector<Reported> WithoutLogprobs(std::vector<Reported> tokens) {
  for (Reported& token : tokens) token = {token.token, 0.0f, {}};
  return tokens;
}

void CheckSame(const std::vector<GenerationRequest>& requests, const Outcomes& alone,
               const Outcomes& speculated) {
  for (const auto& [id, outcome] : speculated) {
    INFO("request " << id.first << ", branch " << id.second);
    const GenerationRequest& request = requests[id.first - 1];
    std::vector<Reported> want = alone.at(id).tokens;
    std::vector<Reported> got = outcome.tokens;
    if (outcome.cancelled) {
      REQUIRE(got.size() <= want.size());
      want.resize(got.size());
    }
    if (request.sampling.num_logprobs < 0) {
      want = WithoutLogprobs(std::move(want));
      got = WithoutLogprobs(std::move(got));
    }
    CHECK(got == want);
    if (!outcome.cancelled && request.num_branches == 1) {
      CHECK(outcome.scores == alone.at(id).scores);
    }
  }
  CHECK(speculated.size() <= alone.size());
}

TEST_CASE("Speculation changes no token and no log-probability", "[golden]") {
  const std::string name =
      GENERATE("llama", "mistral_window", "gemma2", "gpt_oss", "llama_q4_0", "mixtral");
  INFO(name);
  Model model;
  Load(name, &model);
  const int64_t rounds = EnvOr("HEDDLE_SPECULATION_ROUNDS", 8);
  const auto first_seed = static_cast<uint64_t>(EnvOr("HEDDLE_SPECULATION_SEED", 1));
  scheduler::SchedulerStats sum;
  for (int64_t round = 0; round < rounds; ++round) {
    const uint64_t seed = first_seed + static_cast<uint64_t>(round);
    INFO("HEDDLE_SPECULATION_SEED=" << seed);
    RandomRequests random(seed, model);
    const std::vector<GenerationRequest> requests = random.Make();
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
  CHECK(sum.preemptions > rounds / 4);
  CHECK(sum.cached_tokens > rounds * 10);
}

struct NetworkLoads {
  scheduler::SchedulerStats sum;
  int64_t num_guesses = 0;
};

// Loads with the guesses of the drafter beside the model, each against its requests alone.
NetworkLoads CheckNetworkLoads(const Model& model) {
  const int64_t rounds = EnvOr("HEDDLE_SPECULATION_ROUNDS", 4);
  const auto first_seed = static_cast<uint64_t>(EnvOr("HEDDLE_SPECULATION_SEED", 1));
  NetworkLoads all;
  for (int64_t round = 0; round < rounds; ++round) {
    const uint64_t seed = first_seed + static_cast<uint64_t>(round);
    INFO("HEDDLE_SPECULATION_SEED=" << seed);
    RandomRequests random(seed, model);
    const std::vector<GenerationRequest> requests = random.Make();
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
  }
  CHECK(all.sum.drafted_tokens > rounds * 50);
  CHECK(all.sum.cached_tokens + all.sum.preemptions > 0);
  return all;
}

// A model's guesses of itself are right wherever it has seen all of the sequence, and draws with
// the same numbers: only where the KV of the drafter is stale, or a page of it is lost, is it
// wrong.
TEST_CASE("A model as its own draft model guesses what it draws, and changes nothing", "[golden]") {
  const std::string name = GENERATE("mistral", "mistral_window", "gemma2", "llama_q4_0", "llama");
  INFO(name);
  Model model;
  Load(name, &model, OwnDraft::kYes);
  const NetworkLoads loads = CheckNetworkLoads(model);
  const scheduler::SchedulerStats& sum = loads.sum;
  INFO("guessed " << loads.num_guesses << ", drafted " << sum.drafted_tokens << ", accepted "
                  << sum.accepted_tokens << ", preempted " << sum.preemptions << ", cached "
                  << sum.cached_tokens);
  // The draft model runs without the adapters that some requests have, and a window may have passed
  // what it has to catch up with.
  const bool has_windows = model.executor->limits().windows[0] > 0;
  const double least = model.adapter != nullptr ? 0.3 : has_windows ? 0.9 : 0.98;
  CHECK(static_cast<double>(sum.accepted_tokens) >=
        least * static_cast<double>(sum.drafted_tokens));
}

// Random heads guess wrong. That they guess at all, for nearly all sequences, says that they have
// seen their hidden states.
TEST_CASE("Heads that read hidden states change no token and no log-probability", "[golden]") {
  const std::string name = GENERATE(from_range(test::DraftGoldenNames()));
  INFO(name);
  const test::DraftGolden golden = test::LoadDraftGolden(name);
  Model model;
  const std::filesystem::path path =
      test::WriteSyntheticModel(golden.model, model.folder.path() / "model");
  const std::filesystem::path files = model.folder.path() / "network";
  if (!golden.is_mtp()) test::WriteSyntheticModel(golden.files, files);
  engine::LoadOptions options = SmallOptions();
  options.open_draft = [&](const engine::Checkpoint& target,
                           const engine::ModelDescription& description) {
    return test::OpenNetwork(golden, files, target, description);
  };
  LoadExecutor(path, options, &model);
  CHECK(CheckNetworkLoads(model).num_guesses > 500);
}

}  // namespace
}  // namespace heddle
