// Who gets a place in the batch: admission of waiting sequences, and what may be taken from running
// ones for them.
#include <algorithm>

#include "scheduler/scheduler.h"

namespace heddle::scheduler {

namespace {

// New prompts are admitted beyond the step's budget up to this many, so that short ones need not
// wait until a long one is through. More would only hold pages without getting tokens: halving
// shares reach kMinChunkTokens after a few prompts.
constexpr size_t kMaxPromptsOverBudget = 8;

// Waiting sequences that are looked at per step, those that wait for a page in the making included:
// a bound on the time of a plan, whatever the length of the queue.
constexpr int kMaxWaitingLookedAt = 128;

// Generated tokens, and their spans, that a sequence has room for when it is admitted; more grow by
// doubling. 256 KiB of addresses per sequence, of which a short answer touches a page.
constexpr int32_t kReservedTokens = 1 << 16;

// So that no step allocates for an answer that grows.
void ReserveAnswer(RequestState* request, int32_t max_context, const SchedulerOptions& options) {
  const int32_t prompt = request->num_prompt();
  const engine::PageRule rule = options.page_rule();
  const int32_t growth =
      std::min({request->request.max_tokens, max_context - prompt, kReservedTokens});
  for (Sequence& branch : request->branches) {
    if (branch.phase == Phase::kFinished) continue;
    branch.generated.reserve(static_cast<size_t>(growth));
    for (int32_t group = 0; group < branch.tables.num_groups(); ++group) {
      const int64_t held = rule.MostHeld(prompt + growth, options.windows[group]);
      branch.tables[group].Reserve(static_cast<int32_t>(held), options.page_tokens);
    }
  }
}

}  // namespace

void Scheduler::Admit(int32_t budget) {
  if (budget <= 0) return;
  PromoteOverdue();
  int64_t wanted = 0;
  for (const Sequence* prompt : prompts_) wanted += prompt->num_remaining();
  waiting_.BeginWalk();
  for (int looked_at = 0; looked_at < kMaxWaitingLookedAt; ++looked_at) {
    Sequence* next = waiting_.Next();
    if (next == nullptr) return;
    bool is_full = wanted >= budget && prompts_.size() >= kMaxPromptsOverBudget;
    if (is_full && !next->request->overdue) return;
    if (!MayFit(*next)) return;
    if (WaitsForLeader(next->request)) {
      waiting_.Skip(next);
      continue;
    }
    TakeCached(next);
    if (FindsLeader(next)) {
      next->tables.Drop(&pool_);
      waiting_.Skip(next);
      continue;
    }
    if (!MakeRoom(*next)) {
      next->tables.Drop(&pool_);
      blocked_ = next->id;
      blocked_spare_ = SparePages();
      return;
    }
    waiting_.Erase(next);
    wanted += next->num_remaining();
    MakeRunning(next);
  }
}

// Pages that `sequence` takes beside those it has until its tokens are computed. With a window it
// gives others back meanwhile, and never has more than PageRule says.
int32_t Scheduler::PagesToRun(const Sequence& sequence) const {
  const int32_t tokens = sequence.num_remaining();
  if (!has_windows_) return sequence.tables.PagesNeeded(tokens, pool_);
  int32_t pages = 0;
  for (int32_t group = 0; group < num_groups_; ++group) {
    const PageTable& table = sequence.tables[group];
    pages += std::min(table.PagesNeeded(tokens, pool_),
                      std::max(0, most_pages_[group] - table.num_pages()));
  }
  return pages;
}

// Pages that nobody needs for the tokens there are now. Every running sequence may need one more of
// each group before an admission has to be regretted.
int64_t Scheduler::SparePages() const {
  return pool_.num_free() - reserved_pages_ - static_cast<int64_t>(running_.size()) * num_groups_;
}

// With nothing running, whatever passed Validate fits.
bool Scheduler::FitsBeside(const Sequence& sequence) const {
  if (slots_ + NumSlots(sequence) > max_running_) return false;
  return running_.empty() || SparePages() >= PagesToRun(sequence);
}

// False where it is known without a search for cached pages: there is no place, or it did not fit
// before and nothing has become free since.
bool Scheduler::MayFit(const Sequence& sequence) const {
  bool has_slots = slots_ + NumSlots(sequence) <= max_running_;
  bool was_blocked = sequence.id == blocked_ && SparePages() <= blocked_spare_;
  return (has_slots && (running_.empty() || !was_blocked)) || DisplacesLast(sequence);
}

// Makes `next` fit, at the cost of running sequences that it may displace.
bool Scheduler::MakeRoom(const Sequence& next) {
  while (!FitsBeside(next)) {
    if (!DisplacesLast(next)) return false;
    if (is_ahead_) {
      needs_tokens_ = true;
      return false;
    }
    Sequence* victim = running_.back();
    running_.pop_back();
    slots_ -= NumSlots(*victim);
    reserved_pages_ -= PagesToRun(*victim);
    std::erase(prompts_, victim);
    Preempt(victim);
  }
  return true;
}

// Whether `next` may take the place of the least urgent running sequence: by the policy, or because
// it is overdue and came earlier.
bool Scheduler::DisplacesLast(const Sequence& next) const {
  if (running_.empty()) return false;
  const RequestState& last = *running_.back()->request;
  if (last.overdue) return false;
  OrderKey key = next.request->key;
  if (next.request->overdue) return key.arrival < last.key.arrival;
  if (policy_->is_per_tenant()) {
    key.rank = NumRunning(next.request->flow);
    // The other's rank is of the time when it came: what counts is how many there are now, too.
    if (!policy_->Displaces(key, {.rank = NumRunning(last.flow)})) return false;
  }
  return policy_->Displaces(key, last.key);
}

int32_t Scheduler::NumRunning(int32_t flow) const {
  return static_cast<int32_t>(
      std::count_if(running_.begin(), running_.end(),
                    [flow](const Sequence* sequence) { return sequence->request->flow == flow; }));
}

void Scheduler::MakeRunning(Sequence* sequence) {
  RequestState* request = sequence->request;
  if (request->cached_tokens < 0) {
    ReserveAnswer(request, max_context_, options_);
    request->cached_tokens = std::min(sequence->num_computed(), request->num_prompt());
    totals_.cached_tokens += request->cached_tokens;
    waiting_.Charge(request->flow, kPromptCharge * sequence->num_remaining());
  }
  // Only while no other branch stands in an order by this key.
  if (policy_->is_per_tenant() && !request->forked && !request->overdue) {
    request->key.rank = NumRunning(request->flow);
  }
  Note(*sequence, StepNote::Kind::kAdmitted, sequence->num_computed());
  sequence->phase = Phase::kRunning;
  sequence->num_planned = 0;
  slots_ += NumSlots(*sequence);
  reserved_pages_ += PagesToRun(*sequence);
  InsertRunning(sequence);
  prompts_.push_back(sequence);
}

// Requests whose waiting sequences have waited for too long go ahead of all others, among each
// other in the order of arrival, for the rest of their lives.
void Scheduler::PromoteOverdue() {
  if (options_.starvation_us == 0) return;
  const int64_t since_us = now_us_ - options_.starvation_us;
  while (Sequence* next = waiting_.TakeAged(since_us)) {
    if (!next->request->overdue) Promote(next->request);
  }
}

void Scheduler::Promote(RequestState* request) {
  auto is_of_it = [request](const Sequence* sequence) { return sequence->request == request; };
  for (Sequence& branch : request->branches) {
    if (branch.phase == Phase::kWaiting) waiting_.Detach(&branch);
  }
  std::erase_if(running_, is_of_it);
  request->overdue = true;
  request->key.rank = OrderKey::kOverdue;
  for (Sequence& branch : request->branches) {
    if (branch.phase == Phase::kWaiting) waiting_.Attach(&branch);
    if (branch.phase == Phase::kRunning) InsertRunning(&branch);
  }
  blocked_ = SequenceId{};
  ++totals_.overdue;
}

// Time from its first step to its last, in the company of what ran in the last step. 0: not known.
int64_t Scheduler::EstimateWorkUs(const GenerationRequest& request) const {
  if (!cost_model_.is_ready()) return 0;
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  double answer = request.max_tokens;
  if (mean_answer_tokens_ > 0) answer = std::min(answer, mean_answer_tokens_);
  const StepCost whole_prompt{
      .rows = prompt, .attended = prompt * (prompt + 1) / 2, .sequences = 1};
  return static_cast<int64_t>(cost_model_.PredictUs(whole_prompt) +
                              answer * cost_model_.PredictUs(last_cost_));
}

}  // namespace heddle::scheduler
