// A load of one executor with drafts, step by step, and what it brings each request; to be compared
// with what the same requests bring alone and without drafts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "base/in_flight.h"
#include "catch2/catch.hpp"
#include "engine/model/load.h"
#include "scheduler/scheduler.h"
#include "tests/model/random_requests.h"

namespace heddle::test {

// The report on a token, or on a prompt's score.
struct Reported {
  engine::TokenId token;
  float logprob;
  std::vector<std::pair<engine::TokenId, float>> top;
  friend bool operator==(const Reported&, const Reported&) = default;

  static Reported Of(const engine::SampledToken& sampled) {
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

// A load of one executor: requests arrive `gap` steps apart. With `known`, the sequences get drafts
// from these answers, with every fourth token or so wrong.
class SpeculatedLoad {
 public:
  SpeculatedLoad(engine::LocalExecutor* executor, const scheduler::SchedulerOptions& options,
                 const Outcomes* known, uint64_t seed)
      : executor_(*executor),
        scheduler_(options),
        known_(known),
        random_(seed),
        plans_(options.max_in_flight) {}

  void Run(const std::vector<scheduler::GenerationRequest>& requests, int gap,
           int32_t cancels_per_100_steps) {
    cancels_per_100_steps_ = cancels_per_100_steps;
    for (const scheduler::GenerationRequest& request : requests) {
      scheduler_.Add(request, now_us_);
      for (int i = 0; i < gap; ++i) Step();
    }
    while (Step()) {
    }
  }
  // From now on drafts are those of the drafter beside the model.
  void DraftWithNetwork() { drafts_ahead_ = true; }
  // Its guesses from the first `token` on get no rows.
  void GiveNoRowsFrom(engine::TokenId token) { without_rows_ = token; }
  int64_t num_guesses() const { return num_guesses_; }
  int64_t num_ahead() const { return num_ahead_; }  // steps planned behind others in flight
  const std::set<engine::TokenId>& tokens_guessed() const { return tokens_guessed_; }
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
      if (found->second.num_generated == candidate.generated.size()) {
        scheduler_.Offer(candidate.id, found->second.tokens);
      } else {
        guessed_.erase(found);
      }
    }
    // In a pipeline a sequence may have to wait for its turn.
    if (executor_.limits().pipeline_stages == 1) guessed_.clear();
    if (Below(5) == 0) return;
    scheduler_.SetAhead({.tokens = 1 + Below(8), .feeds_drafter = true});
  }

  // Counts for sequences that the step has not ended.
  void TakeGuesses() {
    REQUIRE(result_.draft_failure.empty());
    for (const engine::GuessedTokens& guessed : result_.guessed) {
      Guessed& kept = guessed_[guessed.id];
      kept = {};
      for (int32_t i = 0; i < guessed.num_guesses; ++i) {
        const engine::GuessedToken& guess = result_.guesses.at(guessed.guess_begin + i);
        if (guess.token == without_rows_) break;
        kept.tokens.push_back(guess.token);
        tokens_guessed_.insert(guess.token);
      }
      num_guesses_ += guessed.num_guesses;
    }
    scheduler_.ListDraftable(&candidates_);
    for (const scheduler::DraftCandidate& candidate : candidates_) {
      const auto found = guessed_.find(candidate.id);
      if (found == guessed_.end() || found->second.num_generated > 0) continue;
      found->second.num_generated = candidate.generated.size();
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
      std::vector<engine::TokenId> draft;
      const int32_t length = 1 + Below(10);
      for (size_t at = candidate.generated.size();
           at < answer->second.tokens.size() && draft.size() < static_cast<size_t>(length); ++at) {
        const engine::TokenId token = answer->second.tokens[at].token;
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
    if (plans_.empty()) {
      Draft();
      scheduler_.Plan(now_us_, &plans_.next());
      if (plans_.next().empty()) return false;
      Submit();
    }
    while (!plans_.full()) {
      Draft();
      if (!scheduler_.PlanAhead(now_us_, &plans_.next())) break;
      ++num_ahead_;
      Submit();
    }
    REQUIRE(executor_.Wait(&result_).ok());
    result_.timing.swap_ns = 0;  // steps take no time here: swaps must not seem to
    std::vector<scheduler::SequenceEvent> events;
    if (Below(100) < cancels_per_100_steps_) {
      scheduler_.Cancel(scheduler::RequestId{static_cast<uint64_t>(1 + Below(kRequests))},
                        scheduler::FinishReason::kCancelled, &events);
    }
    scheduler_.Commit(result_, now_us_, &events);
    plans_.Pop();
    REQUIRE(scheduler_.CheckIntegrity().ok());
    for (const scheduler::SequenceEvent& event : events) Book(event);
    if (drafts_ahead_) TakeGuesses();
    return true;
  }

  void Submit() {
    REQUIRE(executor_.Submit(plans_.next(), scheduler_.locals()).ok());
    plans_.Push();
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
  scheduler::Scheduler scheduler_;
  const Outcomes* known_;
  std::mt19937_64 random_;
  std::vector<scheduler::DraftCandidate> candidates_;
  base::InFlight<engine::StepPlan> plans_;
  engine::StepResult result_;
  Outcomes outcomes_;
  int64_t now_us_ = 0;
  int32_t cancels_per_100_steps_ = 0;
  struct Guessed {
    size_t num_generated = 0;
    std::vector<engine::TokenId> tokens;
  };
  bool drafts_ahead_ = false;
  engine::TokenId without_rows_ = engine::kNoToken;
  std::map<engine::SequenceId, Guessed> guessed_;
  int64_t num_guesses_ = 0;
  int64_t num_ahead_ = 0;
  std::set<engine::TokenId> tokens_guessed_;  // by the network
};

inline scheduler::SchedulerOptions PlainOptions(const engine::ExecutorLimits& limits) {
  return {.num_pages = limits.num_pages,
          .page_tokens = limits.page_tokens,
          .max_context = limits.max_context,
          .windows = limits.windows,
          .window_grain = limits.window_grain,
          .state_groups = limits.state_groups,
          .state_is_snapshot = limits.state_is_snapshot,
          .max_step_tokens = limits.max_batch_tokens,
          .max_step_seqs = 16,
          .pipeline_stages = limits.pipeline_stages,
          .max_in_flight = limits.pipeline_stages == 1 ? 1 : limits.pipeline_stages + 1,
          .holds_pages = limits.pipeline_stages > 1,
          .max_draft_tokens = limits.max_draft_tokens,
          .rows_beyond_guesses = limits.rows_beyond_guesses,
          .prefix_cache = false,
          .adapter_slots = limits.adapter_slots};
}

// Room for the longest request and little more, so that some are preempted.
inline scheduler::SchedulerOptions TightOptions(const SpeculatedModel& model,
                                                RandomRequests* random) {
  const engine::ExecutorLimits& limits = model.executor->limits();
  scheduler::SchedulerOptions options = PlainOptions(limits);
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
inline std::vector<Reported> WithoutLogprobs(std::vector<Reported> tokens) {
  for (Reported& token : tokens) token = {token.token, 0.0f, {}};
  return tokens;
}

inline void CheckSame(const std::vector<scheduler::GenerationRequest>& requests,
                      const Outcomes& alone, const Outcomes& speculated) {
  for (const auto& [id, outcome] : speculated) {
    INFO("request " << id.first << ", branch " << id.second);
    const scheduler::GenerationRequest& request = requests[id.first - 1];
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

}  // namespace heddle::test
