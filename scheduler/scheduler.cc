#include "scheduler/scheduler.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "scheduler/workers.h"

namespace heddle::scheduler {

using engine::SequenceGain;
using engine::StepPlan;
using engine::StepResult;

namespace {

// The index of a sequence's embedding in the step's results; -1: none.
int32_t PooledIndex(const StepResult& result, SequenceId id) {
  auto found = std::find_if(result.pooled.begin(), result.pooled.end(),
                            [id](const engine::PooledState& pooled) { return pooled.id == id; });
  if (found == result.pooled.end()) return -1;
  return static_cast<int32_t>(found - result.pooled.begin());
}

// The largest share of fruitless samples at which planning ahead still pays, because the step
// before it has no pause.
constexpr float kMaxPassedShare = 0.1f;
// Weight of the newest draw in the running share of draws that forced tokens follow: the last dozen
// count.
constexpr float kForcingWeight = 1.0f / 8;

}  // namespace

Scheduler::Scheduler(const SchedulerOptions& options)
    : limits_(options),
      pool_(options.num_pages, options.page_tokens),
      budget_(limits_.options),
      shares_(limits_.options, budget_),
      contexts_(limits_, &pool_, budget_),
      prefixes_(limits_, &pool_, budget_, contexts_),
      adapters_(limits_.options, &pool_, budget_, &totals_),
      running_(limits_.max_running),
      admission_(
          {limits_, requests_, pool_, budget_, shares_, prefixes_, adapters_, running_, totals_}),
      planner_(
          {limits_, requests_, pool_, budget_, shares_, prefixes_, adapters_, running_, totals_},
          &admission_),
      flights_(options.max_in_flight) {}

void Scheduler::Add(GenerationRequest request, int64_t now_us) {
  const RequestId id = request.id;
  auto state = std::make_unique<RequestState>();
  state->arrival_us = now_us;
  state->live_branches = request.num_branches;
  state->branches.resize(static_cast<size_t>(request.num_branches));
  state->request = std::move(request);
  const AdapterUse& adapter = state->request.adapter;
  const int32_t adapter_pages = adapter.id == engine::AdapterId{} ? 0 : adapter.num_pages;
  for (int32_t b = 0; b < state->live_branches; ++b) {
    Sequence& branch = state->branches[b];
    branch.id = SequenceId{++last_sequence_id_};
    branch.branch = b;
    branch.request = state.get();
    branch.tables.SetGroups(limits_.num_groups);
    if (state->request.keep != ContextId{}) keepers_[ContextOf(branch)] = &branch;
  }
  if (state->has_workers()) BeginWorkers(state.get());
  if (!state->request.parts.empty()) Place(state.get());
  const bool is_usual = adapter_pages == 0 && state->layout.is_plain();
  state->max_context = is_usual ? limits_.max_context
                                : SchedulerLimits::MaxContext(limits_.options, adapter_pages,
                                                              state->layout.first_end());
  state->num_scored = state->request.first_score;
  prefixes_.HashPrompt(state.get());
  const auto [added, is_new] = requests_.emplace(id, std::move(state));
  HEDDLE_CHECK(is_new, "a request id was used twice");
  admission_.Add(added->second.get(), now_us);
}

// Gives the tokens of a request with parts their places, at which all but the interface counts.
void Scheduler::Place(RequestState* state) const {
  GenerationRequest& request = state->request;
  state->layout = ContextLayout(request.parts, limits_.options.page_tokens);
  state->layout.AddHoles(&request.prompt);
  request.first_score = state->layout.PlaceOf(request.first_score + 1) - 1;
  request.draft.off = true;
}

void Scheduler::Cancel(RequestId id, FinishReason reason, std::vector<SequenceEvent>* events) {
  auto it = requests_.find(id);
  if (it == requests_.end()) return;
  // The last Finish takes the state out of the map but keeps it alive until Sweep.
  RequestState* state = it->second.get();
  // Waiting branches end last: ending the carrier first would hand its pages over to each in turn.
  for (Sequence& branch : state->branches) {
    if (branch.phase == Phase::kUnforked && !branch.is_over) Finish(&branch, reason, events);
  }
  for (Sequence& branch : state->branches) {
    if (branch.phase != Phase::kFinished && !branch.is_over) Finish(&branch, reason, events);
  }
  Sweep();
}

void Scheduler::CancelBranch(RequestId id, int32_t branch, std::vector<SequenceEvent>* events) {
  auto it = requests_.find(id);
  if (it == requests_.end()) return;
  RequestState& state = *it->second;
  if (branch < 0 || branch >= static_cast<int32_t>(state.branches.size())) return;
  Sequence* sequence = &state.branches[branch];
  if (sequence->phase == Phase::kFinished || sequence->is_over) return;
  const bool is_carrier = !state.forked && sequence->phase != Phase::kUnforked;
  if (is_carrier && !state.has_workers()) HandOver(sequence);
  Finish(sequence, FinishReason::kCancelled, events);
  Sweep();
}

void Scheduler::Pause(RequestId id) {
  auto it = requests_.find(id);
  if (it != requests_.end() && !it->second->paused) admission_.Pause(it->second.get());
}

void Scheduler::Resume(RequestId id, int64_t now_us) {
  auto it = requests_.find(id);
  if (it != requests_.end() && it->second->paused) admission_.Resume(it->second.get(), now_us);
}

// Lets another live branch, if there is one, compute the prompt in place of `carrier`.
void Scheduler::HandOver(Sequence* carrier) {
  RequestState& state = *carrier->request;
  auto heir = std::find_if(state.branches.begin(), state.branches.end(),
                           [](const Sequence& s) { return s.phase == Phase::kUnforked; });
  if (heir == state.branches.end()) return;
  std::swap(heir->tables, carrier->tables);
  AdapterPool::HandOver(carrier, &*heir);
  heir->num_recompute = carrier->num_recompute;
  heir->num_hashed_pages = carrier->num_hashed_pages;
  heir->chain = carrier->chain;
  if (carrier->phase == Phase::kWaiting) {
    admission_.Replace(carrier, &*heir);
  } else if (carrier->phase == Phase::kRunning) {
    running_.Replace(carrier, &*heir);
  }
  heir->phase = carrier->phase;
  carrier->phase = Phase::kUnforked;
}

void Scheduler::Expire(int64_t now_us, std::vector<SequenceEvent>* events) {
  if (limits_.options.max_queue_us == 0) return;
  const int64_t since_us = now_us - limits_.options.max_queue_us;
  for (Sequence* next = admission_.oldest(); next && next->waiting_since_us <= since_us;) {
    RequestState* request = next->request;
    next = next->waits_before;
    if (!request->started) Cancel(request->request.id, FinishReason::kError, events);
  }
}

void Scheduler::CancelAll(FinishReason reason, std::vector<SequenceEvent>* events) {
  std::vector<RequestId> ids;
  ids.reserve(requests_.size());
  for (const auto& [id, state] : requests_) ids.push_back(id);
  for (RequestId id : ids) Cancel(id, reason, events);
}

SequenceEvent& Scheduler::AddEvent(const Sequence& sequence, std::vector<SequenceEvent>* events) {
  SequenceEvent& event = events->emplace_back();
  event.request = sequence.request->request.id;
  event.branch = sequence.branch;
  event.sequence = sequence.id;
  std::swap(event.queued_us, sequence.request->queued_us);
  return event;
}

void Scheduler::Finish(Sequence* sequence, FinishReason reason,
                       std::vector<SequenceEvent>* events) {
  SequenceEvent& event = AddEvent(*sequence, events);
  event.finished = true;
  event.reason = reason;
  RequestState* state = sequence->request;
  const bool is_last = --state->live_branches == 0;
  if (!is_last && state->has_workers()) return EndWorker(sequence, reason);
  for (Sequence& branch : state->branches) {
    if (branch.is_over) Free(&branch, reason);
  }
  Free(sequence, reason);
  if (!is_last) return;
  if (!state->started && !state->paused) admission_.CountStarted(*state);
  admission_.Leave(*state);
  auto it = requests_.find(state->request.id);
  ended_requests_.emplace_back(step_, std::move(it->second));
  requests_.erase(it);
}

void Scheduler::Free(Sequence* sequence, FinishReason reason) {
  if (sequence->phase == Phase::kWaiting) admission_.Erase(sequence);
  if (sequence->phase == Phase::kRunning) running_has_finished_ = true;
  if (sequence->phase == Phase::kParked) admission_.CountUnparked();
  sequence->phase = Phase::kFinished;
  prefixes_.Leave(sequence);
  KeepContext(sequence, reason);
  sequence->tables.Drop(&pool_);
  adapters_.Leave(sequence);
  if (sequence->begun) ended_.push_back(sequence->id);
}

void Scheduler::EndWorker(Sequence* sequence, FinishReason reason) {
  std::vector<TokenId>& block = sequence->request->forked ? sequence->generated : sequence->block;
  block.resize(static_cast<size_t>(NumKept(*sequence, reason)));
  sequence->is_over = true;
  sequence->num_expected = 0;
  sequence->is_awaited = false;
  if (sequence->num_computed() <= sequence->num_tokens()) return;
  sequence->tables.Truncate(sequence->num_tokens(), &pool_);
}

// Removes finished sequences from the running set, and frees ended requests that no step in flight
// names any more.
void Scheduler::Sweep() {
  if (running_has_finished_) {
    running_.EraseIf([](const Sequence* s) { return s->phase == Phase::kFinished; });
    running_has_finished_ = false;
  }
  const uint64_t oldest = flights_.empty() ? step_ + 1 : flights_.oldest().step;
  std::erase_if(ended_requests_, [oldest](const auto& ended) { return ended.first < oldest; });
}

// The most proposed tokens that the sequence has a use for; 0: it takes no draft now. The last
// token of an answer needs no place in a draft, because a draft brings one token more than it has.
int32_t Scheduler::MaxDraft(const Sequence& sequence) const {
  const RequestState& request = *sequence.request;
  const bool is_known = request.forked && !sequence.generated.empty() &&
                        sequence.num_expected == 0 && sequence.num_drafted == 0;
  if (!is_known || request.paused || sequence.num_remaining() != 1 || !request.layout.is_plain()) {
    return 0;
  }
  const int32_t left =
      std::min(request.request.max_tokens - static_cast<int32_t>(sequence.generated.size()),
               request.max_context - sequence.num_tokens());
  return std::max(0, std::min(limits_.options.max_draft_tokens, left - 1));
}

void Scheduler::ListDraftable(std::vector<DraftCandidate>* candidates) const {
  candidates->clear();
  if (limits_.options.max_draft_tokens == 0) return;
  for (const Sequence* sequence : running_) {
    const int32_t max_tokens = MaxDraft(*sequence);
    if (max_tokens == 0) continue;
    candidates->push_back({.id = sequence->id,
                           .branch = sequence->branch,
                           .request = &sequence->request->request,
                           .generated = sequence->generated,
                           .max_tokens = max_tokens});
  }
}

int32_t Scheduler::NumDecoding() const {
  return static_cast<int32_t>(std::count_if(running_.begin(), running_.end(), [](const auto* s) {
    return !s->request->paused && !s->generated.empty() && s->num_remaining() == 1;
  }));
}

void Scheduler::Offer(SequenceId id, std::span<const TokenId> draft) {
  const auto found = std::find_if(running_.begin(), running_.end(),
                                  [id](const Sequence* s) { return s->id == id; });
  if (found == running_.end()) return;
  const size_t length = std::min(draft.size(), static_cast<size_t>(MaxDraft(**found)));
  (*found)->draft.assign(draft.begin(), draft.begin() + static_cast<std::ptrdiff_t>(length));
  has_drafts_ |= length > 0;
}

void Scheduler::LimitAhead(SequenceId id, int32_t tokens) {
  const auto found = std::find_if(running_.begin(), running_.end(),
                                  [id](const Sequence* s) { return s->id == id; });
  if (found != running_.end()) (*found)->max_ahead = tokens;
}

void Scheduler::Plan(int64_t now_us, StepPlan* plan) {
  HEDDLE_CHECK(flights_.empty(), "the last plan was not committed");
  MakePlan(now_us, /*is_ahead=*/false, plan);
}

bool Scheduler::PlanAhead(int64_t now_us, StepPlan* plan) {
  if (flights_.empty() || flights_.full()) return false;
  if (planner_.step().needs_tokens || !MayExpect()) return false;
  Expect();
  // A preemption could hit a sequence whose token is still being drawn by a step in flight.
  if (!planner_.FitsWithoutPreemption()) return false;
  MakePlan(now_us, /*is_ahead=*/true, plan);
  return !plan->empty();
}

void Scheduler::MakePlan(int64_t now_us, bool is_ahead, StepPlan* plan) {
  plan->Clear();
  plan->more_groups.resize(static_cast<size_t>(limits_.num_groups) - 1);
  plan->step = ++step_;
  plan->ended.swap(ended_);
  Flight& flight = flights_.next();
  flight.Clear();
  flight.step = step_;
  flight.is_first = flights_.empty();
  if (limits_.options.holds_pages && flights_.empty()) pool_.FreeHeld(step_);
  planner_.Plan(now_us, is_ahead, plan, &flight);
  FollowKeepers();
  if (std::exchange(has_drafts_, false)) {
    for (Sequence* sequence : running_) sequence->draft.clear();
  }
  if (!plan->empty()) {
    flights_.Push();
  } else if (flights_.empty()) {
    pool_.FreeHeld(step_ + 1);
  }
}

// Whether a step may be planned behind those in flight: none of them pools, and their samples are
// likely to be useful. A sequence whose grammar forces tokens behind its draw gets no token in the
// step planned ahead, and runs a step later than it could.
bool Scheduler::MayExpect() const {
  const bool expects = limits_.options.pipeline_stages == 1;
  float passed = 0;
  size_t num_samples = 0;
  for (int i = 0; i < flights_.size(); ++i) {
    if (flights_[i].has_pools) return false;
    if (!expects) continue;
    for (const FlightSample& sample : flights_[i].samples) passed += sample.owner->forcing;
    num_samples += flights_[i].samples.size();
  }
  return passed <= kMaxPassedShare * static_cast<float>(num_samples);
}

// Counts the next token of each sequence that a step in flight draws as a token to run, or, in a
// pipeline, notes that it is to come. A sample
// for any position but the sequence's next one follows a draw behind which tokens turned out to be
// forced: its result is dropped.
void Scheduler::Expect() {
  for (int i = 0; i < flights_.size(); ++i) {
    for (const FlightSample& sample : flights_[i].samples) sample.owner->num_expected = 0;
  }
  for (int i = 0; i < flights_.size(); ++i) {
    const Flight& flight = flights_[i];
    for (size_t s = 0; s < flight.samples.size(); ++s) {
      Sequence* owner = flight.samples[s].owner;
      // Nobody knows how many tokens a draft brings.
      const bool goes_on = owner->phase == Phase::kRunning && !owner->is_over &&
                           !limits_.IsFull(*owner, 1) && flight.samples[s].num_rows == 1;
      if (!goes_on || flight.samples[s].position != owner->num_tokens()) continue;
      if (limits_.options.pipeline_stages > 1) {
        owner->is_awaited = true;
        continue;
      }
      owner->num_expected = 1;
      owner->expected_step = flight.step;
      owner->expected_sample = static_cast<int32_t>(s);
    }
  }
}

void Scheduler::Commit(const StepResult& result, int64_t now_us,
                       std::vector<SequenceEvent>* events) {
  HEDDLE_CHECK(!flights_.empty() && result.step == flights_.oldest().step,
               "the result is not of the oldest step in flight");
  const Flight& flight = flights_.oldest();
  HEDDLE_CHECK(result.gains.size() == flight.samples.size(), "a sample is missing");
  for (const ScoreOwner& scores : flight.score_owners) {
    for (const Sequence& branch : scores.request->branches) {
      if (branch.phase == Phase::kFinished) continue;
      SequenceEvent& event = AddEvent(branch, events);
      event.score_begin = scores.begin;
      event.num_scores = scores.count;
      break;
    }
  }
  for (size_t i = 0; i < flight.samples.size(); ++i) {
    // Skips sequences that were cancelled meanwhile, or ended by an earlier step after this one was
    // planned.
    if (flight.samples[i].owner->phase == Phase::kFinished) continue;
    if (flight.samples[i].owner->is_over) continue;
    Accept(flight.samples[i], result.gains[i], result, events);
  }
  FinishPrompts(flight, result, events);
  int64_t beside_ns = result.timing.swap_ns;
  for (const engine::DraftPassTime& pass : result.draft_times) beside_ns += pass.ns;
  // A pipeline that was empty passes the first of several steps through all of its stages.
  const bool fills = limits_.options.pipeline_stages > 1 && flight.is_first && flights_.size() > 1;
  budget_.CountStep(flight, fills, static_cast<double>(beside_ns) * 1e-3, now_us);
  adapters_.CountDone(flight.step);
  flights_.Pop();
  if (limits_.options.holds_pages)
    pool_.FreeHeld(flights_.empty() ? step_ + 1 : flights_.oldest().step);
  Sweep();
}

// Ends the requests that want nothing behind their prompts.
void Scheduler::FinishPrompts(const Flight& flight, const StepResult& result,
                              std::vector<SequenceEvent>* events) {
  for (RequestState* request : flight.prompts_only) {
    for (Sequence& branch : request->branches) {
      if (branch.phase == Phase::kFinished) continue;
      Finish(&branch, FinishReason::kLength, events);
      events->back().pooled = PooledIndex(result, branch.id);
    }
  }
}

// Books the tokens that a sample brought. Tokens beyond its rows were forced: they are rows of the
// next step, like a prompt's. A gain without tokens changes nothing.
void Scheduler::Accept(const FlightSample& sample, const SequenceGain& gain,
                       const StepResult& result, std::vector<SequenceEvent>* events) {
  Sequence* sequence = sample.owner;
  sequence->num_expected = 0;
  sequence->is_awaited = false;
  if (sample.num_rows > 1) sequence->num_drafted = 0;
  const int32_t rows_dropped = sample.num_rows - gain.rows_kept;
  HEDDLE_CHECK(gain.id == sequence->id && rows_dropped >= 0, "a gain is not that of the sample");
  if (rows_dropped > 0) sequence->tables.Truncate(sequence->num_computed() - rows_dropped, &pool_);
  if (gain.failure != engine::DrawFailure::kNone) return Fail(sequence, gain.failure, events);
  if (gain.num_tokens == 0) return;
  const auto tokens =
      std::span(result.tokens)
          .subspan(static_cast<size_t>(gain.token_begin), static_cast<size_t>(gain.num_tokens));
  if (tokens[0].token < 0) return Fail(sequence, engine::DrawFailure::kNothingToDraw, events);
  const bool is_first = sequence->num_drawn() == 0;
  std::optional<FinishReason> end;
  int32_t num_booked = 0;
  while (!end && num_booked < gain.num_tokens) end = Append(sequence, tokens[num_booked++].token);
  const int32_t num_forced = std::max(0, num_booked - gain.rows_kept);
  totals_.forced_tokens += num_forced;
  sequence->forcing += kForcingWeight * ((num_forced > 0 ? 1.0f : 0.0f) - sequence->forcing);
  const size_t index = events->size();
  if (end) {
    budget_.CountAnswer(sequence->generated.size());
    Finish(sequence, *end, events);
  } else {
    AddEvent(*sequence, events);
  }
  SequenceEvent& event = (*events)[index];
  event.num_drafted = sample.num_rows - 1;
  event.num_accepted = std::min(gain.rows_kept - 1, num_booked);
  totals_.drafted_tokens += event.num_drafted;
  totals_.accepted_tokens += event.num_accepted;
  if (is_first) event.cached_tokens = std::max(0, sequence->request->cached_tokens);
  event.token_begin = gain.token_begin;
  event.num_tokens = num_booked;
}

void Scheduler::Fail(Sequence* sequence, engine::DrawFailure failure,
                     std::vector<SequenceEvent>* events) {
  const int32_t num_drawn = sequence->num_drawn();
  Finish(sequence, FinishReason::kError, events);
  events->back().failure = failure;
  events->back().num_drawn = num_drawn;
}

// Appends one token to an answer; returns why the answer ends with it, if it does.
std::optional<FinishReason> Scheduler::Append(Sequence* sequence, TokenId token) {
  const GenerationRequest& request = sequence->request->request;
  sequence->generated.push_back(token);
  ++totals_.generated_tokens;
  admission_.ChargeAnswer(*sequence->request, 1);
  if (std::find(request.stop_tokens.begin(), request.stop_tokens.end(), token) !=
      request.stop_tokens.end()) {
    return FinishReason::kStop;
  }
  return limits_.IsFull(*sequence, 0) ? std::optional(FinishReason::kLength) : std::nullopt;
}

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats = totals_;
  const int32_t num_paused = running_.NumPaused();
  stats.running_sequences = static_cast<int32_t>(running_.size()) - num_paused;
  stats.paused_sequences = num_paused + admission_.num_parked();
  stats.waiting_requests = admission_.num_unstarted();
  stats.waiting_tokens = admission_.unstarted().rows;
  stats.live_requests = static_cast<int32_t>(requests_.size());
  stats.pages_used = pool_.num_used();
  stats.pages_cached = pool_.num_evictable();
  stats.host_pages_used = prefixes_.host_pages_used();
  stats.kept_contexts = contexts_.size();
  stats.live_clients = shares_.num_live();
  adapters_.AddTo(&stats);
  return stats;
}

AdapterLists Scheduler::adapter_lists(size_t limit) const {
  AdapterLists lists;
  adapters_.List(limit, &lists);
  admission_.ListAdapters(limit, &lists);
  for (auto* list : {&lists.resident, &lists.waiting}) std::sort(list->begin(), list->end());
  return lists;
}

}  // namespace heddle::scheduler
