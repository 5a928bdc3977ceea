#include "server/loop/speculation.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

namespace heddle::server {
namespace {

using Clock = std::chrono::steady_clock;
using scheduler::DraftCandidate;
using scheduler::FinishReason;
using scheduler::SequenceEvent;

// Where steps are planned ahead, the drafters are asked once in so many plans as long as they have
// nothing to propose: waiting for tokens costs a small part of a step.
constexpr int64_t kPlansBetweenQuestions = 16;
// A proposal of so many tokens that are more likely right than not, from a text, takes its sequence
// far beyond what a network would guess behind it: that need not be asked.
constexpr size_t kFarTokens = 8;
constexpr float kFarSurvival = 0.5f;

}  // namespace

Speculation::Speculation(std::unique_ptr<engine::Drafter> drafter, const Options& options,
                         engine::NetworkDrafter* network)
    : options_(options),
      drafter_(std::move(drafter)),
      budget_(options.budget),
      network_(network),
      ahead_(options.ahead) {}

bool Speculation::WantsTokens() const {
  if (!options_.ignores_cost && !budget_.wants_drafts()) return false;
  return had_rows_ || plans_since_asked_ >= kPlansBetweenQuestions;
}

void Speculation::Offer(scheduler::Scheduler* scheduler) {
  had_rows_ = false;
  ++plans_since_asked_;
  AskAhead(scheduler);
  if (!options_.ignores_cost && !budget_.wants_drafts()) return;
  const auto began = Clock::now();
  Ask(scheduler);
  asked_us_ += std::chrono::duration<double, std::micro>(Clock::now() - began).count();
}

void Speculation::Ask(scheduler::Scheduler* scheduler) {
  scheduler->ListDraftable(&candidates_);
  if (candidates_.empty()) return;
  plans_since_asked_ = 0;
  offers_.clear();
  if (proposals_.size() < candidates_.size()) proposals_.resize(candidates_.size());
  const size_t first = catch_up_.Begin(candidates_.size());
  for (size_t turn = 0; turn < candidates_.size(); ++turn) {
    const size_t i = (first + turn) % candidates_.size();
    const engine::SequenceId id = candidates_[i].id;
    Proposal& proposal = proposals_[turn];
    Propose(i, &proposal);
    offers_.push_back({.id = id,
                       .survival = proposal.survival,
                       .rows = static_cast<int32_t>(proposal.tokens.size())});
    if (network_ != nullptr) {
      scheduler->LimitAhead(id,
                            FollowsText(id, proposal) ? 0 : std::numeric_limits<int32_t>::max());
    }
  }
  if (!options_.ignores_cost) {
    budget_.Choose({.decodes = scheduler->NumDecoding(), .prompts = last_prompt_rows_}, offers_);
  }
  for (size_t i = 0; i < offers_.size(); ++i) {
    if (offers_[i].rows == 0) continue;
    had_rows_ = true;
    scheduler->Offer(offers_[i].id,
                     std::span(proposals_[i].tokens).first(static_cast<size_t>(offers_[i].rows)));
  }
}

// Whether the proposal comes from a text and goes far.
bool Speculation::FollowsText(engine::SequenceId id, const Proposal& proposal) const {
  if (proposal.tokens.size() < kFarTokens || proposal.survival.back() < kFarSurvival) return false;
  const auto guesses = guesses_.find(id);
  return guesses == guesses_.end() ||
         !std::equal(proposal.tokens.begin(), proposal.tokens.begin() + 1,
                     guesses->second.tokens.begin(), guesses->second.tokens.end());
}

// Asks the drafter beside the model for guesses behind the next plan's samples.
void Speculation::AskAhead(scheduler::Scheduler* scheduler) {
  if (network_ == nullptr) return;
  if (options_.ignores_cost) {
    return scheduler->SetAhead(
        {.tokens = options_.ahead.max_tokens, .feeds_drafter = options_.ahead.reads_features});
  }
  network_->set_proposes(ahead_.may_have_rows());
  scheduler::AheadWish wish = ahead_.Choose(scheduler->NumDecoding(), budget_.times());
  if (budget_.is_paused()) wish.tokens = 0;
  scheduler->SetAhead(wish);
}

// Tells the drafters of candidate `i` as far as this question goes. Returns whether they know all
// of it then.
bool Speculation::Begin(size_t i) {
  const DraftCandidate& candidate = candidates_[i];
  if (unshown_.contains(candidate.id)) return ShowSome(i, candidate.id);
  const scheduler::GenerationRequest& request = *candidate.request;
  const size_t tokens = request.prompt.size() + candidate.generated.size();
  if (!options_.ignores_cost && !catch_up_.TakeNew(i, tokens)) return false;
  unshown_.try_emplace(candidate.id);
  // Requests of one cache space have one adapter, and one client's secret if they have any.
  const engine::DraftScope scope{.tenant = request.tenant, .adapters = request.cache_space};
  drafter_->Begin(candidate.id, scope, request.prompt, request.prediction);
  drafter_->Append(candidate.id, candidate.generated);
  return true;
}

// Shows the drafters what they have not seen of candidate `i`, which has begun, as far as this
// question goes. Returns whether that is all.
bool Speculation::ShowSome(size_t i, engine::SequenceId id) {
  std::vector<engine::TokenId>& tokens = unshown_[id];
  const size_t count = options_.ignores_cost ? tokens.size() : catch_up_.Take(i, tokens.size());
  if (count == tokens.size()) {
    ShowAll(id);
    return true;
  }
  if (count > 0) drafter_->Append(id, std::span(tokens).first(count));
  tokens.erase(tokens.begin(), tokens.begin() + static_cast<ptrdiff_t>(count));
  return false;
}

// Shows the drafters all that they have not seen of a sequence that has begun.
void Speculation::ShowAll(engine::SequenceId id) {
  std::vector<engine::TokenId>& tokens = unshown_[id];
  if (!tokens.empty()) drafter_->Append(id, tokens);
  tokens.clear();
}

void Speculation::Propose(size_t i, Proposal* proposal) {
  const DraftCandidate& candidate = candidates_[i];
  proposal->tokens.clear();
  proposal->survival.clear();
  const scheduler::DraftLimits& limits = candidate.request->draft;
  int32_t max_tokens = std::min(candidate.max_tokens, options_.max_tokens);
  if (limits.max_tokens >= 0) max_tokens = std::min(max_tokens, limits.max_tokens);
  if (limits.off || max_tokens < 1) return;
  if (!Begin(i)) return;
  if (const auto guesses = guesses_.find(candidate.id); guesses != guesses_.end()) {
    network_->TakeGuesses(candidate.id, guesses->second.tokens, guesses->second.probabilities);
  }
  drafter_->Propose(candidate.id, max_tokens, &tree_);
  TakeChain(limits, proposal);
}

// Follows the likeliest child from node to node. Tokens that the model does not have end the chain.
void Speculation::TakeChain(const scheduler::DraftLimits& limits, Proposal* proposal) const {
  int32_t at = -1;
  while (true) {
    int32_t next = -1;
    for (int32_t node = at + 1; node < tree_.size(); ++node) {
      const auto i = static_cast<size_t>(node);
      if (tree_.parents[i] != at) continue;
      if (next < 0 || tree_.survival[i] > tree_.survival[static_cast<size_t>(next)]) next = node;
    }
    if (next < 0) break;
    const auto i = static_cast<size_t>(next);
    const engine::TokenId token = tree_.tokens[i];
    if (token < 0 || token >= options_.vocab || tree_.survival[i] < limits.min_survival) break;
    proposal->tokens.push_back(token);
    proposal->survival.push_back(tree_.survival[i]);
    at = next;
  }
  if (static_cast<int32_t>(proposal->tokens.size()) >= limits.min_tokens) return;
  proposal->tokens.clear();
  proposal->survival.clear();
}

void Speculation::TakeEvent(const SequenceEvent& event, const engine::StepResult& result) {
  if (event.num_drafted > 0) {
    drafter_->Verified(event.sequence, event.num_drafted, event.num_accepted);
    budget_.CountDraft(event.sequence, event.num_drafted, event.num_accepted);
  }
  if (unshown_.empty()) return;
  const auto unshown = unshown_.find(event.sequence);
  if (unshown == unshown_.end()) return;
  // Where a step is stuck, events without tokens come while the executor may write the result.
  if (event.num_tokens > 0) {
    const std::span tokens =
        std::span(result.tokens)
            .subspan(static_cast<size_t>(event.token_begin), static_cast<size_t>(event.num_tokens));
    for (const engine::SampledToken& token : tokens) unshown->second.push_back(token.token);
  }
  // Questions take up the rest. A verdict on what the network guessed belongs to this step.
  const bool may_wait =
      !options_.ignores_cost && !event.finished && !guesses_.contains(event.sequence);
  if (!may_wait) ShowAll(event.sequence);
  if (!event.finished) return;
  const bool is_whole =
      event.reason == FinishReason::kStop || event.reason == FinishReason::kLength;
  drafter_->End(event.sequence, is_whole);
  budget_.Forget(event.sequence);
  unshown_.erase(event.sequence);
}

void Speculation::CountStep(const engine::StepPlan& plan, const engine::StepResult& result,
                            std::span<const SequenceEvent> events, double us) {
  scheduler::DraftedStep step = scheduler::RowsOf(plan);
  for (const SequenceEvent& event : events) step.accepted += event.num_accepted;
  last_prompt_rows_ = step.rows.prompts;
  for (const engine::DraftPassTime& pass : result.draft_times) {
    if (us > 0) us = std::max(1.0, us - static_cast<double>(pass.ns) / 1e3);
  }
  step.us = us;
  step.asked_us = std::exchange(asked_us_, 0);
  const scheduler::BookedStep booked = budget_.CountStep(step);
  CountAhead(plan, result, booked);
}

// The network's part of a step: its passes, its guesses for the next one, and what became of those
// that this one verified.
void Speculation::CountAhead(const engine::StepPlan& plan, const engine::StepResult& result,
                             const scheduler::BookedStep& booked) {
  if (network_ == nullptr) return;
  if (!result.draft_failure.empty()) ahead_.TakeFailure();
  const engine::NetworkDrafter::Verdict verdict = network_->TakeVerdict();
  for (size_t place = 0; place < verdict.tried.size(); ++place) {
    ahead_.CountGuesses(place, verdict.tried[place], verdict.right[place]);
  }
  ahead_.CountStep({.passes = result.draft_times,
                    .sequences = static_cast<int32_t>(plan.drafts_ahead.size()),
                    .drafted = verdict.drafted,
                    .accepted = verdict.accepted,
                    .booked = booked});
  // Guesses of sequences that other steps draw for stay as they are.
  for (const engine::SampleRow& sample : plan.samples) guesses_.erase(sample.id);
  for (const engine::SequenceId id : plan.ended) guesses_.erase(id);
  for (const engine::GuessedTokens& guessed : result.guessed) {
    Guesses& kept = guesses_[guessed.id];
    const auto begin = result.guesses.begin() + guessed.guess_begin;
    std::for_each(begin, begin + guessed.num_guesses, [&](const engine::GuessedToken& guess) {
      kept.tokens.push_back(guess.token);
      kept.probabilities.push_back(guess.probability);
    });
  }
}

std::unique_ptr<Speculation> MakeSpeculation(const scheduler::SchedulerOptions& scheduler,
                                             const SpeculationOptions& options,
                                             const engine::ExecutorLimits& limits) {
  if (!options.on || scheduler.max_draft_tokens == 0) return nullptr;
  Speculation::Options own{
      .max_tokens = options.max_tokens,
      .vocab = limits.vocab,
      .budget = {.max_step_rows = scheduler.max_step_tokens,
                 .target_us = std::max(0.0, static_cast<double>(scheduler.target_step_us))}};
  if (limits.max_ahead_tokens == 0) {
    return std::make_unique<Speculation>(engine::MakeDrafter(options.drafters), own);
  }
  own.ahead = {.max_tokens = std::min(limits.max_ahead_tokens, options.max_tokens),
               .reads_features = limits.drafter_reads_features};
  auto network = std::make_unique<engine::NetworkDrafter>();
  engine::NetworkDrafter* const drafter = network.get();
  return std::make_unique<Speculation>(engine::MakeDrafter(options.drafters, std::move(network)),
                                       own, drafter);
}

}  // namespace heddle::server
