#include "server/loop/speculation.h"

#include <algorithm>
#include <utility>

namespace heddle::server {
namespace {

using scheduler::DraftCandidate;
using scheduler::FinishReason;
using scheduler::SequenceEvent;

// Where steps are planned ahead, the drafters are asked once in so many plans as long as they have
// nothing to propose: waiting for tokens costs a small part of a step.
constexpr int64_t kPlansBetweenQuestions = 16;

}  // namespace

Speculation::Speculation(std::unique_ptr<engine::Drafter> drafter, const Options& options)
    : options_(options), drafter_(std::move(drafter)), budget_(options.budget) {}

bool Speculation::WantsTokens() const {
  if (!options_.ignores_cost && !budget_.wants_drafts()) return false;
  return had_rows_ || plans_since_asked_ >= kPlansBetweenQuestions;
}

void Speculation::Offer(scheduler::Scheduler* scheduler) {
  had_rows_ = false;
  ++plans_since_asked_;
  if (!options_.ignores_cost && !budget_.wants_drafts()) return;
  scheduler->ListDraftable(&candidates_);
  if (candidates_.empty()) return;
  plans_since_asked_ = 0;
  offers_.clear();
  if (proposals_.size() < candidates_.size()) proposals_.resize(candidates_.size());
  for (size_t i = 0; i < candidates_.size(); ++i) {
    Proposal& proposal = proposals_[i];
    Propose(candidates_[i], &proposal);
    offers_.push_back({.id = candidates_[i].id,
                       .survival = proposal.survival,
                       .rows = static_cast<int32_t>(proposal.tokens.size())});
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

void Speculation::Begin(const DraftCandidate& candidate) {
  if (!begun_.insert(candidate.id).second) return;
  const scheduler::GenerationRequest& request = *candidate.request;
  // Requests of one cache space have one adapter, and one client's secret if they have any.
  const engine::DraftScope scope{.tenant = request.tenant, .adapters = request.cache_space};
  drafter_->Begin(candidate.id, scope, request.prompt, request.prediction);
  drafter_->Append(candidate.id, candidate.generated);
}

void Speculation::Propose(const DraftCandidate& candidate, Proposal* proposal) {
  proposal->tokens.clear();
  proposal->survival.clear();
  const scheduler::DraftLimits& limits = candidate.request->draft;
  int32_t max_tokens = std::min(candidate.max_tokens, options_.max_tokens);
  if (limits.max_tokens >= 0) max_tokens = std::min(max_tokens, limits.max_tokens);
  if (limits.off || max_tokens < 1) return;
  Begin(candidate);
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
  if (begun_.empty() || !begun_.contains(event.sequence)) return;
  if (event.num_tokens > 0) {
    tokens_.clear();
    for (int32_t i = 0; i < event.num_tokens; ++i) {
      tokens_.push_back(result.tokens[static_cast<size_t>(event.token_begin + i)].token);
    }
    drafter_->Append(event.sequence, tokens_);
  }
  if (!event.finished) return;
  const bool is_whole =
      event.reason == FinishReason::kStop || event.reason == FinishReason::kLength;
  drafter_->End(event.sequence, is_whole);
  budget_.Forget(event.sequence);
  begun_.erase(event.sequence);
}

void Speculation::CountStep(const engine::StepPlan& plan, std::span<const SequenceEvent> events,
                            double us) {
  scheduler::DraftedStep step{.us = us};
  for (const engine::SequenceSlice& slice : plan.sequences) {
    if (slice.kind == engine::SliceKind::kPrompt) {
      step.rows.prompts += slice.num_tokens;
    } else {
      ++step.rows.decodes;
      step.drafted += slice.num_tokens - 1;
    }
  }
  for (const SequenceEvent& event : events) step.accepted += event.num_accepted;
  last_prompt_rows_ = step.rows.prompts;
  budget_.CountStep(step);
}

std::unique_ptr<Speculation> MakeSpeculation(const scheduler::SchedulerOptions& scheduler,
                                             const SpeculationOptions& options, int32_t vocab) {
  if (!options.on || scheduler.max_draft_tokens == 0) return nullptr;
  const scheduler::DraftBudget::Options budget{
      .max_step_rows = scheduler.max_step_tokens,
      .target_us = std::max(0.0, static_cast<double>(scheduler.target_step_us))};
  return std::make_unique<Speculation>(
      engine::MakeDrafter(options.drafters),
      Speculation::Options{.max_tokens = options.max_tokens, .vocab = vocab, .budget = budget});
}

}  // namespace heddle::server
