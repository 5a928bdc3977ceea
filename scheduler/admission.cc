#include "scheduler/admission.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/adapter_pool.h"
#include "scheduler/client_shares.h"
#include "scheduler/prefix_matcher.h"

namespace heddle::scheduler {

namespace {

// Prompts that are admitted beyond the step's token budget, so that short ones need not wait until
// a long one is done. A larger number would only hold pages that get no tokens: shares halve from
// prompt to prompt and reach kMinChunkTokens after a few.
constexpr int64_t kMaxPromptsOverBudget = 8;

// Waiting sequences that one step looks at, including those that wait for a page that another
// sequence computes. It bounds the time of a plan, however long the queue is.
constexpr int kMaxWaitingLookedAt = 128;

// Sequences that wait for pages of their adapter beside those that run. Loads come one after the
// other, so a larger number would only hold pages; others that need no loads are served meanwhile.
constexpr int32_t kMaxLoading = 4;

// Waiting sequences whose adapters are loaded before they get a place.
constexpr int kMaxPrefetching = 8;

// Generated tokens, and their spans, for which a sequence reserves room when it is admitted; beyond
// that the vectors double. 256 KiB of addresses per sequence, of which a short answer touches one
// page.
constexpr int32_t kReservedTokens = 1 << 16;

StepCost CostOfPrompt(const RequestState& request) {
  const int64_t rows = request.num_prompt();
  return {.rows = rows, .attended = rows * (rows + 1) / 2};
}

// Reserves the answer's memory at admission, so that no step allocates for an answer that grows.
void ReserveAnswer(RequestState* request, const SchedulerLimits& limits) {
  const SchedulerOptions& options = limits.options;
  const int32_t prompt = request->num_prompt();
  const engine::PageRule rule = options.page_rule();
  const int32_t growth =
      std::min({request->request.max_tokens, request->max_context - prompt, kReservedTokens});
  for (Sequence& branch : request->branches) {
    if (branch.phase == Phase::kFinished) continue;
    branch.generated.reserve(static_cast<size_t>(growth));
    for (int32_t group = 0; group < branch.tables.num_groups(); ++group) {
      const int64_t pages =
          rule.MostPagesOf(prompt + growth, options.windows, static_cast<size_t>(group),
                           request->layout.first_end());
      branch.tables[group].Reserve(static_cast<int32_t>(pages) * options.page_tokens,
                                   options.page_tokens);
    }
  }
}

}  // namespace

Admission::Admission(const SchedulerParts& parts)
    : parts_(parts),
      policy_(MakePolicy(parts.limits.options.policy)),
      holds_(parts.limits),
      waiting_(policy_->is_per_tenant() ? WaitingQueue::Order::kByService
                                        : WaitingQueue::Order::kByUrgency) {}

bool Admission::tells_clients_apart() const {
  return policy_->is_per_tenant() || parts_.shares.is_enabled();
}

void Admission::Add(RequestState* request, int64_t now_us) {
  request->key =
      policy_->Key(request->request, {.number = ++arrivals_,
                                      .first = calls_.FirstOf(request->request.call, arrivals_),
                                      .now_us = now_us,
                                      .work_us = parts_.budget.EstimateWorkUs(request->request),
                                      .starvation_us = parts_.limits.options.starvation_us});
  const uint64_t client = tells_clients_apart() ? ClientOf(request->request) : 0;
  bool is_new = false;
  request->flow = parts_.shares.Enter(client, request->request.weight, &is_new);
  if (is_new) waiting_.Begin(request->flow);
  Sequence* carrier = &request->branches[0];
  carrier->phase = Phase::kWaiting;
  waiting_.Enter(request->flow);
  waiting_.Insert(carrier, now_us);
  if (request->request.adapter.id != engine::AdapterId{}) ++num_with_adapter_;
  ++num_unstarted_;
  unstarted_ += CostOfPrompt(*request);
}

void Admission::CountStarted(const RequestState& request) {
  --num_unstarted_;
  const StepCost prompt = CostOfPrompt(request);
  unstarted_.rows -= prompt.rows;
  unstarted_.attended -= prompt.attended;
}

void Admission::Leave(const RequestState& request) {
  if (request.paused) {
    parts_.shares.Resume(request.flow);
  } else {
    waiting_.Leave(request.flow);
  }
  parts_.shares.Leave(request.flow);
  if (request.request.adapter.id != engine::AdapterId{}) --num_with_adapter_;
}

// Puts the flows of clients that are ahead of others that wait behind those.
void Admission::OrderFlows() {
  waiting_.BeginWalk();
  if (!parts_.shares.is_enabled() || waiting_.busy().size() < 2) return;
  double least = parts_.shares.TimeOf(waiting_.busy().front());
  for (const int32_t flow : waiting_.busy()) least = std::min(least, parts_.shares.TimeOf(flow));
  for (const int32_t flow : waiting_.busy()) {
    if (parts_.shares.IsAheadOf(flow, least)) waiting_.SetLate(flow);
  }
}

void Admission::Admit(int32_t budget, PlannedStep* step) {
  if (budget <= 0) return;
  PromoteOverdue(step->now_us);
  wanted_ = 0;
  for (const Sequence* prompt : step->prompts) {
    if (AdapterPool::IsReady(*prompt)) wanted_ += prompt->num_remaining();
  }
  if (!waiting_.empty()) holds_.Count(parts_.running);
  int looked_at = 0;
  // Calls that want much are considered in a second walk, if nobody else waits any more.
  for (const bool lets_others_go : {true, false}) {
    OrderFlows();
    for (Sequence* next = waiting_.Next(); next != nullptr; next = waiting_.Next()) {
      if (looked_at++ == kMaxWaitingLookedAt) return;
      if (Consider(next, lets_others_go, budget, step) == Walk::kStops) return;
    }
  }
}

// Gives `next` a place, or skips it, or says that nobody behind it may have one either.
Admission::Walk Admission::Consider(Sequence* next, bool lets_others_go, int64_t budget,
                                    PlannedStep* step) {
  if (parts_.shares.IsHeld(next->request->flow)) {
    waiting_.SkipFlow(next->request->flow);
    return Walk::kGoesOn;
  }
  if (lets_others_go && WaitsForOthers(*next, *step)) {
    waiting_.SkipCall(next);
    return Walk::kGoesOn;
  }
  // Paused ones that wait for an adapter are not among the prompts.
  const int64_t num_ready =
      static_cast<int64_t>(step->prompts.size()) - parts_.adapters.num_waiting();
  const bool is_full = wanted_ >= budget && num_ready >= kMaxPromptsOverBudget;
  if (is_full && !next->request->overdue) return Walk::kStops;
  const bool needs_loads = parts_.adapters.NeedsLoads(next->request->request.adapter);
  if (needs_loads && parts_.adapters.num_waiting() >= kMaxLoading && !next->request->overdue) {
    waiting_.Skip(next);
    return Walk::kGoesOn;
  }
  if (!MayFit(*next, *step)) return Walk::kStops;
  if (!TakesCached(next, *step)) {
    waiting_.Skip(next);
    return Walk::kGoesOn;
  }
  if (!MakeRoom(next, step)) {
    next->tables.Drop(&parts_.pool);
    blocked_ = next->id;
    blocked_spare_ = PagesBeside(*next, *step);
    return Walk::kStops;
  }
  waiting_.Erase(next);
  if (!needs_loads) wanted_ += next->num_remaining();
  MakeRunning(next, step);
  return Walk::kGoesOn;
}

// Whether calls that want less come first. An overdue one has its turn, but a call that runs
// already does not stop others for more.
bool Admission::WaitsForOthers(const Sequence& sequence, const PlannedStep& step) const {
  if (!holds_.WantsMuch(sequence, parts_.limits.PagesToRun(sequence, parts_.pool))) return false;
  return !sequence.request->overdue || (holds_.HasSome(sequence) && !FitsBeside(sequence, step));
}

// Fills the tables of `next` with what the prefix cache has. Returns false, with nothing taken, if
// `next` should rather wait for pages that another sequence is computing.
bool Admission::TakesCached(Sequence* next, const PlannedStep& step) {
  PrefixMatcher& prefixes = parts_.prefixes;
  if (prefixes.WaitsForLeader(next->request, parts_.requests)) return false;
  const bool may_fetch = parts_.running.empty() ||
                         PagesBeside(*next, step) >= parts_.limits.PagesToRun(*next, parts_.pool);
  prefixes.Take(next, may_fetch);
  if (!prefixes.FindsLeader(next, step.prompts)) return true;
  next->tables.Drop(&parts_.pool);
  return false;
}

// Pages to spare when `sequence` has its adapter.
int64_t Admission::PagesBeside(const Sequence& sequence, const PlannedStep& step) const {
  return parts_.SparePages(step.reserved_pages) -
         parts_.adapters.PagesToUse(sequence.request->request.adapter);
}

// An empty machine fits whatever passed Validate, but for pages that were fetched for a sequence
// which then got no place: they are held until the step is written.
bool Admission::FitsBeside(const Sequence& sequence, const PlannedStep& step) const {
  if (step.slots + NumSlots(sequence) > parts_.limits.max_running) return false;
  if (parts_.running.empty()) {
    return parts_.pool.num_free() >= parts_.adapters.PagesToUse(sequence.request->request.adapter);
  }
  return PagesBeside(sequence, step) >= parts_.limits.PagesToRun(sequence, parts_.pool);
}

// Returns false where no search for cached pages is needed to know it: there is no place, or the
// sequence did not fit before and no page has become free since.
bool Admission::MayFit(const Sequence& sequence, const PlannedStep& step) const {
  const bool has_slots = step.slots + NumSlots(sequence) <= parts_.limits.max_running;
  const bool was_blocked = sequence.id == blocked_ && PagesBeside(sequence, step) <= blocked_spare_;
  return (has_slots && (parts_.running.empty() || !was_blocked)) || !step.paused.empty() ||
         VictimFor(sequence, step) != nullptr;
}

// Makes room for `next` by parking paused sequences, and then by preempting running sequences that
// it may displace.
bool Admission::MakeRoom(Sequence* waiting, PlannedStep* step) {
  const Sequence& next = *waiting;
  while (!FitsBeside(next, *step)) {
    // With a window, a cached prefix may take more pages than computing it again does, and leave
    // too few for the adapter.
    if (parts_.running.empty() && !next.tables.empty()) {
      parts_.prefixes.GiveUp(waiting);
      continue;
    }
    Sequence* victim = VictimFor(next, *step);
    if (step->paused.empty() && victim == nullptr) return false;
    if (step->is_ahead) {
      step->needs_tokens = true;
      return false;
    }
    if (!step->paused.empty()) {
      ParkLast(step);
      continue;
    }
    parts_.running.Erase(victim);
    holds_.Remove(*victim);
    step->slots -= NumSlots(*victim);
    step->reserved_pages -= parts_.limits.PagesToRun(*victim, parts_.pool);
    std::erase(step->prompts, victim);
    Preempt(victim, step);
  }
  return true;
}

// A page that an adapter is loaded into could hold computed positions of a prompt: it costs what
// these would.
int64_t Admission::LoadCharge(const AdapterUse& use) const {
  return kPromptCharge * parts_.limits.options.page_tokens * parts_.adapters.PagesToLoad(use);
}

// Cost of an adapter's pages for one generated token of one of its users. The pool has room for as
// many sequences as may run; an adapter whose pages would serve one of them costs as much as its
// token.
int64_t Admission::HoldCharge(const AdapterUse& use) const {
  const int64_t users = std::max(1, parts_.adapters.NumUsers(use));
  return kAnswerCharge * use.num_pages * parts_.limits.max_running /
         (users * parts_.limits.options.num_pages);
}

void Admission::ChargeAnswer(const RequestState& request, int64_t tokens) {
  const AdapterUse& use = request.request.adapter;
  const bool is_priced = use.id != engine::AdapterId{} && policy_->is_per_tenant();
  const int64_t hold = is_priced ? HoldCharge(use) : 0;
  waiting_.Charge(request.flow, (kAnswerCharge + hold) * tokens);
}

void Admission::MakeRunning(Sequence* sequence, PlannedStep* step) {
  RequestState* request = sequence->request;
  waiting_.Charge(request->flow, LoadCharge(request->request.adapter));
  if (request->cached_tokens < 0) {
    ReserveAnswer(request, parts_.limits);
    const int32_t cached = std::min(sequence->num_computed(), request->num_prompt());
    request->cached_tokens = request->layout.LengthOf(cached);
    parts_.totals.cached_tokens += cached;
    parts_.totals.cached_page_tokens += cached - cached % parts_.limits.options.page_tokens;
    waiting_.Charge(request->flow, kPromptCharge * sequence->num_remaining());
  }
  // The key may change only while no other branch is ordered by it.
  if (policy_->is_per_tenant() && !request->forked && !request->overdue) {
    request->key.rank = parts_.running.NumOfFlow(request->flow);
  }
  step->Note(*sequence, StepNote::Kind::kAdmitted, sequence->num_computed());
  sequence->phase = Phase::kRunning;
  sequence->num_planned = 0;
  sequence->num_found = sequence->num_computed();
  step->slots += NumSlots(*sequence);
  step->reserved_pages += parts_.limits.PagesToRun(*sequence, parts_.pool);
  parts_.adapters.Use(sequence, step->now_us);
  parts_.running.Insert(sequence);
  holds_.Add(*sequence);
  step->prompts.push_back(sequence);
}

void Admission::Prefetch(int32_t max_pages, PlannedStep* step, engine::StepPlan* plan) {
  int64_t left = std::min<int64_t>(max_pages, parts_.SparePages(step->reserved_pages));
  waiting_.BeginWalk();
  for (int looked_at = 0; looked_at < kMaxPrefetching && left > 0; ++looked_at) {
    Sequence* next = waiting_.Next();
    if (next == nullptr) break;
    left -=
        parts_.adapters.Prefetch(next->request, static_cast<int32_t>(left), plan, &step->locals);
    waiting_.Skip(next);
  }
  parts_.adapters.EndPrefetch();
}

void Admission::Preempt(Sequence* victim, PlannedStep* step) {
  if (victim->request->has_workers() && victim->request->forked) {
    victim = UnforkWorkers(victim, step);
  } else {
    GiveUp(victim, step);
  }
  if (victim->request->paused) return Park(victim);
  victim->phase = Phase::kWaiting;
  waiting_.Insert(victim, step->now_us);
}

// Takes all that a sequence has in the pool.
void Admission::GiveUp(Sequence* victim, PlannedStep* step) {
  if (!victim->tables.empty()) ++parts_.totals.preemptions;
  step->Note(*victim, StepNote::Kind::kPreempted, victim->num_computed());
  victim->num_recompute = std::max(victim->num_recompute, victim->num_computed());
  parts_.prefixes.Leave(victim);
  victim->tables.Drop(&parts_.pool);
  parts_.adapters.Leave(victim);
  victim->num_planned = 0;
  victim->num_followed = 0;
  victim->draft.clear();
}

// The workers of the victim's request give up their pages together, as they got them: their prompt
// is to be computed again, and then their blocks, row by row. Returns the one that computes it.
Sequence* Admission::UnforkWorkers(Sequence* victim, PlannedStep* step) {
  RequestState* request = victim->request;
  for (Sequence& worker : request->branches) {
    if (&worker != victim) {
      holds_.Remove(worker);
      step->slots -= NumSlots(worker);
      if (!request->paused) {
        step->reserved_pages -= parts_.limits.PagesToRun(worker, parts_.pool);
      }
      parts_.running.Erase(&worker);
    }
    for (auto* list : {&step->prompts, &step->decoding, &step->paused}) std::erase(*list, &worker);
    GiveUp(&worker, step);
    worker.block.swap(worker.generated);
    worker.generated.clear();
    worker.phase = Phase::kUnforked;
  }
  request->forked = false;
  return &request->branches[0];
}

void Admission::Park(Sequence* sequence) {
  sequence->phase = Phase::kParked;
  ++num_parked_;
}

void Admission::ParkLast(PlannedStep* step) {
  Sequence* victim = step->paused.back();
  step->paused.pop_back();
  holds_.Remove(*victim);
  parts_.running.Erase(victim);
  step->slots -= NumSlots(*victim);
  Preempt(victim, step);
}

void Admission::ParkForPages(PlannedStep* step) {
  const PageAllocator& pool = parts_.pool;
  while (!step->paused.empty()) {
    int64_t needed = 0;
    for (const Sequence* sequence : parts_.running) {
      needed += sequence->tables.PagesNeeded(sequence->num_planned, pool);
    }
    if (needed <= pool.num_free()) return;
    ParkLast(step);
  }
}

void Admission::Pause(RequestState* request) {
  for (Sequence& branch : request->branches) {
    if (branch.phase != Phase::kWaiting) continue;
    waiting_.Erase(&branch);
    Park(&branch);
  }
  if (!request->started) CountStarted(*request);
  waiting_.Leave(request->flow);
  parts_.shares.Pause(request->flow);
  request->paused = true;
}

void Admission::Resume(RequestState* request, int64_t now_us) {
  request->paused = false;
  waiting_.Enter(request->flow);
  parts_.shares.Resume(request->flow);
  if (!request->started) {
    ++num_unstarted_;
    unstarted_ += CostOfPrompt(*request);
  }
  for (Sequence& branch : request->branches) {
    if (branch.phase != Phase::kParked) continue;
    --num_parked_;
    branch.phase = Phase::kWaiting;
    waiting_.Insert(&branch, now_us);
  }
}

// Moves requests whose waiting sequences have waited too long ahead of all others for the rest of
// their lives. Among themselves they keep the order of arrival.
void Admission::PromoteOverdue(int64_t now_us) {
  const int64_t starvation_us = parts_.limits.options.starvation_us;
  if (starvation_us == 0) return;
  while (Sequence* next = waiting_.TakeAged(now_us - starvation_us)) {
    if (!next->request->overdue) Promote(next->request);
  }
}

void Admission::Promote(RequestState* request) {
  for (Sequence& branch : request->branches) {
    if (branch.phase == Phase::kWaiting) waiting_.Detach(&branch);
  }
  parts_.running.EraseIf(
      [request](const Sequence* sequence) { return sequence->request == request; });
  request->overdue = true;
  request->key.rank = OrderKey::kOverdue;
  for (Sequence& branch : request->branches) {
    if (branch.phase == Phase::kWaiting) waiting_.Attach(&branch);
    if (branch.phase == Phase::kRunning) parts_.running.Insert(&branch);
  }
  blocked_ = SequenceId{};
  ++parts_.totals.overdue;
}

void Admission::ListAdapters(size_t limit, AdapterLists* lists) const {
  if (num_with_adapter_ == 0) return;
  std::vector<engine::AdapterId>& waiting = lists->waiting;
  const Sequence* sequence = waiting_.oldest();
  for (int looked_at = 0; sequence != nullptr && looked_at < kMaxWaitingLookedAt; ++looked_at) {
    const AdapterUse& use = sequence->request->request.adapter;
    if (waiting.size() < limit && parts_.adapters.NeedsLoads(use) &&
        std::find(waiting.begin(), waiting.end(), use.id) == waiting.end()) {
      waiting.push_back(use.id);
    }
    sequence = sequence->waits_before;
  }
}

absl::Status Admission::CheckParked() const {
  int32_t num_parked = 0;
  for (const auto& [id, state] : parts_.requests) {
    for (const Sequence& branch : state->branches) {
      const bool is_parked = branch.phase == Phase::kParked;
      num_parked += is_parked ? 1 : 0;
      const bool waits = branch.phase == Phase::kWaiting;
      if (state->paused ? waits : is_parked) {
        return absl::InternalError(absl::StrCat("sequence ", static_cast<uint64_t>(branch.id),
                                                " waits though it is paused, or is parked though "
                                                "it is not"));
      }
      if (is_parked && !branch.tables.empty()) {
        return absl::InternalError(absl::StrCat("sequence ", static_cast<uint64_t>(branch.id),
                                                " is parked and holds pages"));
      }
    }
  }
  if (num_parked == num_parked_) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat(num_parked, " sequences are parked and ", num_parked_, " are counted"));
}

}  // namespace heddle::scheduler
