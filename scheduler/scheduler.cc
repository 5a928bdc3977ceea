#include "scheduler/scheduler.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace heddle::scheduler {

using engine::SampledToken;
using engine::StepResult;

namespace {

// Which of the step's embeddings is that of a sequence; -1: none.
int32_t PooledIndex(const StepResult& result, SequenceId id) {
  auto found = std::find_if(result.pooled.begin(), result.pooled.end(),
                            [id](const engine::PooledState& pooled) { return pooled.id == id; });
  if (found == result.pooled.end()) return -1;
  return static_cast<int32_t>(found - result.pooled.begin());
}

// Of one more answer in the mean of their lengths: the last few dozen count.
constexpr double kAnswerWeight = 1.0 / 32;
// Of one more draw in how often a grammar forces what follows: the last dozen count.
constexpr float kForcingWeight = 1.0f / 8;
// Of one more step's swaps in the mean time per page.
constexpr double kSwapWeight = 1.0 / 8;

// Pages at the end of a prefix that a sequence which goes on from there takes over, by group.
std::vector<int32_t> TailPages(const SchedulerOptions& options) {
  std::vector<int32_t> pages;
  for (size_t group = 1; group < options.windows.size(); ++group) {
    const int32_t window = options.windows[group];
    pages.push_back(window == 0 ? std::numeric_limits<int32_t>::max()
                                : (window + options.window_grain) / options.page_tokens + 2);
  }
  return pages;
}

std::unique_ptr<PageAllocator> HostPool(const SchedulerOptions& options) {
  if (options.num_host_pages == 0 || !options.prefix_cache) return nullptr;
  return std::make_unique<PageAllocator>(options.num_host_pages, options.page_tokens);
}

}  // namespace

int32_t Scheduler::MaxContext(const SchedulerOptions& options) {
  return options.page_rule().LongestWithin(options.num_pages, options.windows, options.max_context);
}

Scheduler::Scheduler(const SchedulerOptions& options)
    : options_(options),
      max_context_(MaxContext(options)),
      max_running_(std::min(options.max_step_seqs, options.max_step_tokens)),
      num_groups_(static_cast<int32_t>(options.windows.size())),
      has_windows_(std::any_of(options.windows.begin(), options.windows.end(),
                               [](int32_t window) { return window > 0; })),
      pool_(options.num_pages, options.page_tokens),
      host_pool_(HostPool(options)),
      cache_(&pool_, host_pool_.get(), num_groups_),
      policy_(MakePolicy(options.policy)) {
  HEDDLE_CHECK(options.max_context > 0 && max_running_ > 0, "a limit of the scheduler is not set");
  HEDDLE_CHECK(num_groups_ > 0, "a model has at least one group of layers");
  cache_.set_worth([this](int32_t depth) { return PageUs(depth); });
  cache_.set_keeps([this](int32_t depth) { return SwapPays(depth); });
  cache_.set_tails(TailPages(options_));
  for (int32_t window : options_.windows) {
    const int64_t pages = options_.page_rule().MostPages(max_context_, {&window, 1});
    most_pages_.push_back(static_cast<int32_t>(pages));
  }
  running_.reserve(max_running_);
  page_scratch_.reserve(options.page_tokens);
}

absl::Status Scheduler::Validate(const GenerationRequest& request,
                                 const SchedulerOptions& options) {
  int32_t max_context = MaxContext(options);
  int32_t max_running = std::min(options.max_step_seqs, options.max_step_tokens);
  if (request.prompt.empty()) return absl::InvalidArgumentError("The prompt has no tokens.");
  if (request.max_tokens < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_tokens is ", request.max_tokens, "; it must be at least 0."));
  }
  int32_t to_generate = request.max_tokens > 0 ? 1 : 0;
  if (request.prompt.size() + to_generate > static_cast<size_t>(max_context)) {
    bool by_pool = max_context < options.max_context;
    return absl::InvalidArgumentError(absl::StrCat(
        "The prompt has ", request.prompt.size(), " tokens; at most ", max_context - to_generate,
        by_pool ? " fit into the KV memory of this server." : " fit into the model's context."));
  }
  if (request.num_branches < 1 || request.num_branches > max_running) {
    return absl::InvalidArgumentError(
        absl::StrCat("n is ", request.num_branches, "; it must be between 1 and ", max_running,
                     ", the number of sequences that this server runs at a time."));
  }
  return absl::OkStatus();
}

void Scheduler::Add(GenerationRequest request, int64_t now_us) {
  RequestId id = request.id;
  auto state = std::make_unique<RequestState>();
  state->key = policy_->Key(request, {.number = ++arrivals_,
                                      .now_us = now_us,
                                      .work_us = EstimateWorkUs(request),
                                      .starvation_us = options_.starvation_us});
  state->flow = waiting_.FlowOf(policy_->is_per_tenant() ? request.tenant : 0);
  state->arrival_us = now_us;
  state->live_branches = request.num_branches;
  state->branches.resize(request.num_branches);
  state->request = std::move(request);
  int32_t prompt = state->num_prompt();
  for (int32_t b = 0; b < state->live_branches; ++b) {
    Sequence& branch = state->branches[b];
    branch.id = SequenceId{++last_sequence_id_};
    branch.branch = b;
    branch.request = state.get();
    branch.tables.SetGroups(num_groups_);
  }
  if (options_.prefix_cache) HashPrompt(state.get());
  Sequence* carrier = &state->branches[0];
  carrier->phase = Phase::kWaiting;
  bool is_new = requests_.emplace(id, std::move(state)).second;
  HEDDLE_CHECK(is_new, "a request id was used twice");
  waiting_.Enter(carrier->request->flow);
  waiting_.Insert(carrier, now_us);
  ++num_unstarted_;
  unstarted_tokens_ += prompt;
}

void Scheduler::Cancel(RequestId id, FinishReason reason, std::vector<SequenceEvent>* events) {
  auto it = requests_.find(id);
  if (it == requests_.end()) return;
  // The last Finish takes the state out of the map but leaves it alive until Sweep.
  RequestState* state = it->second.get();
  // Waiting branches last: ending the carrier would hand its pages over to each in turn.
  for (Sequence& branch : state->branches) {
    if (branch.phase == Phase::kUnforked) Finish(&branch, reason, events);
  }
  for (Sequence& branch : state->branches) {
    if (branch.phase != Phase::kFinished) Finish(&branch, reason, events);
  }
  Sweep();
}

void Scheduler::CancelBranch(RequestId id, int32_t branch, std::vector<SequenceEvent>* events) {
  auto it = requests_.find(id);
  if (it == requests_.end()) return;
  RequestState& state = *it->second;
  if (branch < 0 || branch >= static_cast<int32_t>(state.branches.size())) return;
  Sequence* sequence = &state.branches[branch];
  if (sequence->phase == Phase::kFinished) return;
  if (!state.forked && sequence->phase != Phase::kUnforked) HandOver(sequence);
  Finish(sequence, FinishReason::kCancelled, events);
  Sweep();
}

// Makes another live branch, if there is one, compute the prompt in place of `carrier`.
void Scheduler::HandOver(Sequence* carrier) {
  RequestState& state = *carrier->request;
  auto heir = std::find_if(state.branches.begin(), state.branches.end(),
                           [](const Sequence& s) { return s.phase == Phase::kUnforked; });
  if (heir == state.branches.end()) return;
  std::swap(heir->tables, carrier->tables);
  heir->num_recompute = carrier->num_recompute;
  heir->num_hashed_pages = carrier->num_hashed_pages;
  heir->chain = carrier->chain;
  if (carrier->phase == Phase::kWaiting) {
    waiting_.Replace(carrier, &*heir);
  } else {
    *std::find(running_.begin(), running_.end(), carrier) = &*heir;
  }
  heir->phase = carrier->phase;
  carrier->phase = Phase::kUnforked;
}

void Scheduler::Expire(int64_t now_us, std::vector<SequenceEvent>* events) {
  if (options_.max_queue_us == 0) return;
  const int64_t since_us = now_us - options_.max_queue_us;
  for (Sequence* next = waiting_.oldest(); next && next->waiting_since_us <= since_us;) {
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
  std::swap(event.queued_us, sequence.request->queued_us);
  return event;
}

void Scheduler::Finish(Sequence* sequence, FinishReason reason,
                       std::vector<SequenceEvent>* events) {
  SequenceEvent& event = AddEvent(*sequence, events);
  event.finished = true;
  event.reason = reason;
  if (sequence->phase == Phase::kWaiting) waiting_.Erase(sequence);
  if (sequence->phase == Phase::kRunning) running_has_finished_ = true;
  sequence->phase = Phase::kFinished;
  LeaveCached(sequence);
  sequence->tables.Drop(&pool_);
  if (sequence->begun) ended_.push_back(sequence->id);
  RequestState* state = sequence->request;
  if (--state->live_branches > 0) return;
  if (!state->started) CountStarted(*state);
  waiting_.Leave(state->flow);
  auto it = requests_.find(state->request.id);
  ended_requests_.emplace_back(step_, std::move(it->second));
  requests_.erase(it);
}

// It waits for its first step no more.
void Scheduler::CountStarted(const RequestState& request) {
  --num_unstarted_;
  unstarted_tokens_ -= request.num_prompt();
}

// Takes finished sequences out of the running list, and frees ended requests that no step in
// flight names any more.
void Scheduler::Sweep() {
  if (running_has_finished_) {
    std::erase_if(running_, [](const Sequence* s) { return s->phase == Phase::kFinished; });
    running_has_finished_ = false;
  }
  const uint64_t oldest = num_flights_ > 0 ? flights_[0].step : step_ + 1;
  std::erase_if(ended_requests_, [oldest](const auto& ended) { return ended.first < oldest; });
}

void Scheduler::Commit(const StepResult& result, int64_t now_us,
                       std::vector<SequenceEvent>* events) {
  const Flight& flight = flights_[0];
  HEDDLE_CHECK(num_flights_ > 0 && result.step == flight.step,
               "the result is not of the oldest step in flight");
  HEDDLE_CHECK(result.samples.size() == flight.sample_owners.size(), "a sample is missing");
  for (const ScoreOwner& scores : flight.score_owners) {
    for (const Sequence& branch : scores.request->branches) {
      if (branch.phase == Phase::kFinished) continue;
      SequenceEvent& event = AddEvent(branch, events);
      event.score_begin = scores.begin;
      event.num_scores = scores.count;
      break;
    }
  }
  for (size_t i = 0; i < flight.sample_owners.size(); ++i) {
    // Cancelled meanwhile, or ended by the step before, when this one was planned already.
    Sequence* owner = flight.sample_owners[i];
    if (owner->phase == Phase::kFinished || std::exchange(owner->sample_is_void, false)) continue;
    Accept(owner, result, static_cast<int32_t>(i), events);
  }
  for (RequestState* request : flight.prompts_only) {
    for (Sequence& branch : request->branches) {
      if (branch.phase == Phase::kFinished) continue;
      Finish(&branch, FinishReason::kLength, events);
      events->back().pooled = PooledIndex(result, branch.id);
    }
  }
  Learn(flight, static_cast<double>(result.timing.swap_ns) * 1e-3, now_us);
  committed_us_ = now_us;
  std::swap(flights_[0], flights_[1]);
  --num_flights_;
  Sweep();
}

// A step takes from when it was planned, or from the end of that before it if that was later.
void Scheduler::Learn(const Flight& flight, double swap_us, int64_t now_us) {
  const int64_t begin_us = std::max(flight.planned_us, committed_us_);
  const double us = static_cast<double>(now_us - begin_us) - swap_us;
  if (flight.cost.rows > 0 && us > 0) cost_model_.Observe(flight.cost, us);
  if (flight.num_swaps == 0 || swap_us <= 0) return;
  const double weight = swap_us_per_page_ == 0 ? 1.0 : kSwapWeight;
  swap_us_per_page_ += weight * (swap_us / flight.num_swaps - swap_us_per_page_);
}

// Books one drawn token, and what a grammar has follow it: rows of the next step, as a prompt's.
void Scheduler::Accept(Sequence* sequence, const StepResult& result, int32_t sample,
                       std::vector<SequenceEvent>* events) {
  const SampledToken& drawn = result.samples[sample];
  sequence->num_expected = 0;
  if (drawn.token < 0) return Finish(sequence, FinishReason::kError, events);  // none to draw from
  const bool is_first = sequence->generated.empty();
  std::optional<FinishReason> end = Append(sequence, drawn.token);
  const bool has_row = sequence->num_remaining() == 0;  // of this token, in the step behind
  size_t num_forced = 0;
  while (!end && num_forced < drawn.forced.size()) {
    end = Append(sequence, drawn.forced[num_forced++]);
  }
  totals_.forced_tokens += static_cast<int64_t>(num_forced);
  sequence->sample_is_void = has_row && num_forced > 0;
  sequence->forcing += kForcingWeight * ((num_forced > 0 ? 1.0f : 0.0f) - sequence->forcing);
  const size_t index = events->size();
  if (end) {
    auto tokens = static_cast<double>(sequence->generated.size());
    const double weight = mean_answer_tokens_ == 0 ? 1.0 : kAnswerWeight;
    mean_answer_tokens_ += weight * (tokens - mean_answer_tokens_);
    Finish(sequence, *end, events);
  } else {
    AddEvent(*sequence, events);
  }
  SequenceEvent& event = (*events)[index];
  if (is_first) event.cached_tokens = std::max(0, sequence->request->cached_tokens);
  event.sample_begin = sample;
  event.num_samples = 1;
  event.num_forced = static_cast<int32_t>(num_forced);
}

// One more token of an answer; why the answer ends with it, if it does.
std::optional<FinishReason> Scheduler::Append(Sequence* sequence, TokenId token) {
  const GenerationRequest& request = sequence->request->request;
  sequence->generated.push_back(token);
  ++totals_.generated_tokens;
  waiting_.Charge(sequence->request->flow, kAnswerCharge);
  if (std::find(request.stop_tokens.begin(), request.stop_tokens.end(), token) !=
      request.stop_tokens.end()) {
    return FinishReason::kStop;
  }
  return IsFull(*sequence, 0) ? std::optional(FinishReason::kLength) : std::nullopt;
}

// With so many more tokens.
bool Scheduler::IsFull(const Sequence& sequence, int32_t more) const {
  return static_cast<int32_t>(sequence.generated.size()) + more >=
             sequence.request->request.max_tokens ||
         sequence.num_tokens() + more >= max_context_;
}

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats = totals_;
  stats.running_sequences = static_cast<int32_t>(running_.size());
  stats.waiting_requests = num_unstarted_;
  stats.waiting_tokens = unstarted_tokens_;
  stats.live_requests = static_cast<int32_t>(requests_.size());
  stats.pages_used = pool_.num_used();
  stats.pages_cached = pool_.num_evictable();
  if (host_pool_) stats.host_pages_used = host_pool_->num_used() + host_pool_->num_evictable();
  return stats;
}

absl::Status Scheduler::CheckIntegrity() const {
  if (absl::Status pages = CheckPages(); !pages.ok()) return pages;
  if (absl::Status cache = cache_.CheckIntegrity(); !cache.ok()) return cache;
  if (!std::is_sorted(running_.begin(), running_.end(), MoreUrgent())) {
    return absl::InternalError("the running sequences are not in the order of service");
  }
  for (const Sequence* sequence = waiting_.oldest(); sequence; sequence = sequence->waits_before) {
    if (sequence->phase != Phase::kWaiting || !sequence->tables.empty()) {
      return absl::InternalError(absl::StrCat("sequence ", static_cast<uint64_t>(sequence->id),
                                              " waits and holds pages, or is not waiting"));
    }
  }
  return absl::OkStatus();
}

absl::Status Scheduler::CheckPages() const {
  if (absl::Status pool = pool_.CheckIntegrity(); !pool.ok()) return pool;
  if (host_pool_) {
    if (absl::Status host = host_pool_->CheckIntegrity(); !host.ok()) return host;
  }
  std::vector<int32_t> references(pool_.num_pages(), 0);
  for (const Sequence* sequence : running_) {
    for (int32_t group = 0; group < num_groups_; ++group) {
      const PageTable& table = sequence->tables[group];
      if (table.num_tokens() != sequence->num_computed()) {
        return absl::InternalError(absl::StrCat("group ", group, " has ", table.num_tokens(),
                                                " positions of ", sequence->num_computed()));
      }
      for (const KvSpan& span : table.spans()) ++references[engine::Index(span.page)];
    }
  }
  for (int32_t page = 0; page < pool_.num_pages(); ++page) {
    if (references[page] != pool_.references(PageId{page})) {
      return absl::InternalError(absl::StrCat("page ", page, " is held ", references[page],
                                              " times and counts ", pool_.references(PageId{page}),
                                              " references"));
    }
  }
  return absl::OkStatus();
}

}  // namespace heddle::scheduler
