#include "server/loop/engine_loop.h"

#include <pthread.h>

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "server/loop/request_checks.h"
#include "server/retry_after.h"

namespace heddle::server {

using scheduler::SequenceEvent;

namespace {

scheduler::SchedulerOptions OptionsOfLoop(const engine::Executor& executor,
                                          const EngineLoopOptions& options) {
  scheduler::SchedulerOptions own = SchedulerOptionsFor(executor.limits(), options);
  own.max_in_flight = options.plan_ahead ? executor.max_in_flight() : 1;
  return own;
}

constexpr std::chrono::milliseconds kRecoveryPoll{50};

double UnixTime() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

EngineLoop::EngineLoop(std::unique_ptr<engine::Executor> executor, const EngineLoopOptions& options,
                       std::unique_ptr<Speculation> speculation)
    : executor_(std::move(executor)),
      scheduler_options_(OptionsOfLoop(*executor_, options)),
      options_(options),
      scheduler_(scheduler_options_),
      flights_(scheduler_options_.max_in_flight),
      speculation_(speculation != nullptr ? std::move(speculation)
                                          : MakeSpeculation(scheduler_options_, options.speculation,
                                                            executor_->limits())),
      room_({.max_requests = options.max_queue,
             .max_tokens = options.max_queue_tokens,
             .is_per_client = scheduler_.tells_clients_apart()}) {
  HEDDLE_CHECK(options.max_queue > 0, "max_queue must be positive");
  stats_.queue_limit = options.max_queue;
  stats_.queue_tokens_limit = options.max_queue_tokens;
  stats_.pages_total = scheduler_options_.num_pages;
  stats_.host_pages_total = scheduler_options_.num_host_pages;
  stats_.page_tokens = scheduler_options_.page_tokens;
  stats_.adapters.max = scheduler_options_.adapter_slots;
  stats_.adapters.changed_at = UnixTime();
  published_ = stats_;
  progress_us_ = NowUs();
  thread_ = std::thread([this] { Run(); });
}

EngineLoop::~EngineLoop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    mail_.cancel_all = true;
    if (state_ == EngineState::kServing || state_ == EngineState::kRecovering) {
      state_ = EngineState::kDraining;
    }
  }
  posted_.notify_one();
  thread_.join();
}

int64_t EngineLoop::NowUs() {
  auto since = Clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(since).count();
}

void EngineLoop::Run() {
  pthread_setname_np(pthread_self(), "engine-loop");
  while (TakeMail()) {
    std::lock_guard own(own_);
    TakeIn(&taken_);
    if (!failure_.ok()) {
      FailAll();  // ends what came in while the executor failed
    } else if (is_recovering_) {
      Recover();
    } else {
      RunStep();
    }
    has_requests_ = !scheduler_.idle();
  }
}

// Waits until there is work. Returns false when the loop is to end and nothing is left.
bool EngineLoop::TakeMail() {
  std::unique_lock lock(mutex_);
  if (!has_work_ && mail_.empty()) {
    idle_ = !has_requests_;
    drained_.notify_all();
    const auto has_mail = [this] { return stop_ || !mail_.empty(); };
    if (recovers_) {
      posted_.wait_for(lock, kRecoveryPoll, has_mail);
    } else {
      posted_.wait(lock, has_mail);
    }
    if (mail_.empty() && (stop_ || !recovers_)) return false;
  }
  taken_.Clear();
  std::swap(taken_, mail_);
  // They count as waiting until the next Publish, when the scheduler tells how many still do.
  published_.waiting_requests += static_cast<int32_t>(taken_.submissions.size());
  published_.waiting_tokens += static_cast<int64_t>(std::exchange(posted_tokens_, 0));
  return true;
}

// A request whose client has left before the loop heard of it costs nothing but its last events.
void EngineLoop::Drop(Submission* submission) {
  if (scheduler_.tells_clients_apart()) {
    std::lock_guard lock(mutex_);
    room_.Leave(ClientOf(submission->request));
  }
  for (int32_t branch = 0; branch < submission->request.num_branches; ++branch) {
    submission->sink({.branch = branch, .finished = true, .reason = FinishReason::kCancelled});
  }
}

// Events of cancellations queue behind those of the last step until they are delivered.
void EngineLoop::TakeIn(Mailbox* mail) {
  for (Submission& submission : mail->TakeCancelled()) Drop(&submission);
  for (Submission& submission : mail->submissions) {
    int32_t branches = submission.request.num_branches;
    histories_.Queued(submission.request, submission.arrival_us);
    clients_[submission.request.id] = {std::move(submission.sink), branches,
                                       ClientOf(submission.request), BansUntil(submission.request)};
    scheduler_.Add(std::move(submission.request), submission.arrival_us);
  }
  for (const Cancellation& cancellation : mail->cancellations) {
    if (cancellation.branch < 0) {
      scheduler_.Cancel(cancellation.id, FinishReason::kCancelled, &events_);
    } else {
      scheduler_.CancelBranch(cancellation.id, cancellation.branch, &events_);
    }
  }
  for (const PauseOrder& pause : mail->pause_orders) {
    if (pause.begins) {
      scheduler_.Pause(pause.id);
    } else {
      scheduler_.Resume(pause.id, NowUs());
    }
  }
  for (const ContextOrder& order : mail->context_orders) {
    if (order.to == scheduler::ContextId{}) {
      scheduler_.DropContext(order.from);
    } else if (!order.join.children.empty()) {
      scheduler_.JoinContexts(order.join);
    } else {
      scheduler_.ForkContext(order.from, order.num_tokens, order.to);
    }
  }
  if (mail->cancel_all) scheduler_.CancelAll(FinishReason::kCancelled, &events_);
}

// This runs after a plan: a request that can start is started, however long it has waited.
void EngineLoop::Expire() {
  scheduler_.Expire(NowUs(), &events_);
  if (events_.empty()) return;
  const double limit = Seconds(options_.max_queue_us);
  expired_ = WithRetryAfter(
      absl::ResourceExhaustedError(absl::StrCat("The request waited for ", limit,
                                                " s without a start, the longest that this server "
                                                "lets one wait.")),
      limit);
  Emit();
  expired_ = absl::OkStatus();
}

void EngineLoop::RunStep() {
  absl::Status status = flights_.empty() ? BeginStep() : absl::OkStatus();
  if (status.ok() && !flights_.empty()) status = BeginStepsAhead();
  Publish();  // before the sinks: a client that has its last token finds its pages free in Stats
  if (status.ok() && flights_.empty()) status = executor_->status();
  if (!status.ok()) return Fail(std::move(status));
  // The last request is followed by one more plan, which ends its sequences.
  has_work_ = !flights_.empty();
  if (has_work_) {
    Tell();
    return FinishStep();
  }
  Emit();
  Expire();
  step_done_us_ = 0;
  CheckWhenIdle();
}

absl::Status EngineLoop::BeginStep() {
  Flight& next = flights_.next();
  next.planned_us = NowUs();
  Draft();
  scheduler_.Plan(next.planned_us, &next.plan);
  if (next.plan.empty()) return absl::OkStatus();
  HEDDLE_RETURN_IF_ERROR(Launch());
  next.waited_us = step_done_us_ > 0 ? NowUs() - step_done_us_ : -1;
  return absl::OkStatus();
}

// Offers the next plan drafts.
void EngineLoop::Draft() {
  if (speculation_ == nullptr) return;
  TellDrafters();
  speculation_->Offer(&scheduler_);
}

// Tells the drafters of the events that have come since the last call.
void EngineLoop::TellDrafters() {
  if (speculation_ == nullptr) return;
  for (; told_events_ < events_.size(); ++told_events_) {
    speculation_->TakeEvent(events_[told_events_], result_);
  }
}

// Submits steps behind those in flight, as long as their plans need not wait for tokens. Those of a
// pipeline never do: the tokens of the sequences that they run are known.
absl::Status EngineLoop::BeginStepsAhead() {
  const bool may_wait = speculation_ != nullptr && scheduler_options_.pipeline_stages == 1;
  while (!flights_.full() && !(may_wait && speculation_->WantsTokens())) {
    Flight& next = flights_.next();
    next.planned_us = NowUs();
    Draft();
    if (!scheduler_.PlanAhead(next.planned_us, &next.plan)) {
      stats_.plan_seconds += Seconds(NowUs() - next.planned_us);
      return absl::OkStatus();
    }
    ++stats_.steps_ahead;
    next.waited_us = 0;
    HEDDLE_RETURN_IF_ERROR(Launch());
  }
  return absl::OkStatus();
}

// Submits the step that was planned last.
absl::Status EngineLoop::Launch() {
  Flight& next = flights_.next();
  next.notes.assign(scheduler_.notes().begin(), scheduler_.notes().end());
  next.locals = scheduler_.locals();
  stats_.plan_seconds += Seconds(NowUs() - next.planned_us);
  flights_.Push();
  return Lend([&] { return executor_->Submit(next.plan, next.locals); });
}

// Calls the executor; meanwhile FailIfStuck may take over the loop's own work.
template <typename Call>
absl::Status EngineLoop::Lend(Call&& call) {
  own_.unlock();
  absl::Status status = std::forward<Call>(call)();
  own_.lock();
  return failure_.ok() ? status : failure_;
}

// Delivers and books what the last step brought while the next one runs.
void EngineLoop::Tell() {
  const int64_t begin_us = NowUs();
  Emit();
  Expire();
  stats_.orphaned_requests =
      scheduler_.stats().live_requests - static_cast<int32_t>(clients_.size());
  stats_.emit_seconds += Seconds(NowUs() - begin_us);
}

void EngineLoop::FinishStep() {
  absl::Status status = Lend([this] { return executor_->Wait(&result_); });
  const int64_t executed_us = NowUs();
  last_step_us_ = executed_us;
  paused_before_step_end_us_ = pauses_.Us(executed_us);
  if (!status.ok()) return Fail(std::move(status));
  if (!result_.draft_failure.empty() && options_.on_draft_failure) {
    options_.on_draft_failure(result_.draft_failure);
  }
  TellDrafters();  // of what is not of this step
  const size_t first_event = events_.size();
  scheduler_.Commit(result_, executed_us, &events_);
  stats_.plan_seconds += Seconds(NowUs() - executed_us);
  if (speculation_ != nullptr) {
    const Flight& flight = flights_.oldest();
    if (speculation_->has_network()) TellDrafters();  // its account wants the step's own verdict
    speculation_->CountStep(flight.plan, result_, std::span(events_).subspan(first_event),
                            StepUs(flight, executed_us));
  }
  CountStep(&flights_.oldest(), executed_us);
  flights_.Pop();
}

// The time of a step that did nothing but run its rows; 0: it did.
double EngineLoop::StepUs(const Flight& flight, int64_t end_us) const {
  const engine::StepPlan& plan = flight.plan;
  const bool moves_pages =
      !plan.swaps_in.empty() || !plan.swaps_out.empty() || !plan.adapter_loads.empty();
  if (moves_pages) return 0;
  return static_cast<double>(end_us - std::max(flight.planned_us, step_done_us_));
}

// Records what Emit reports of the step; Emit itself runs during the next one.
void EngineLoop::CountStep(Flight* flight, int64_t end_us) {
  std::swap(notes_, flight->notes);
  noted_begin_us_ = std::max(flight->planned_us, step_done_us_);
  step_done_us_ = end_us;
  ++stats_.steps;
  if (flight->waited_us >= 0) {
    const int64_t idle_ns = result_.timing.idle_ns;
    stats_.between_seconds +=
        idle_ns >= 0 ? static_cast<double>(idle_ns) * 1e-9 : Seconds(flight->waited_us);
  }
  stats_.forward_seconds += static_cast<double>(result_.timing.forward_ns) * 1e-9;
  stats_.swap_seconds += static_cast<double>(result_.timing.swap_ns) * 1e-9;
  stats_.sample_seconds += static_cast<double>(result_.timing.sample_ns) * 1e-9;
}

void EngineLoop::Fail(absl::Status error) {
  if (!BeginRecovery(error)) FailForGood(std::move(error));
}

void EngineLoop::FailForGood(absl::Status error) {
  {
    std::lock_guard lock(mutex_);
    state_ = EngineState::kFailed;
    failure_ = std::move(error);
  }
  FailAll();
}

void EngineLoop::FailAll() {
  has_work_ = false;
  flights_.Clear();
  step_done_us_ = 0;
  scheduler_.CancelAll(FinishReason::kError, &events_);
  Publish();
  Emit();
}

// Delivers all queued events; those with tokens belong to the last committed step.
void EngineLoop::Emit() {
  TellDrafters();
  if (!notes_.empty()) histories_.Step(notes_, noted_begin_us_, step_done_us_);
  notes_.clear();
  for (const SequenceEvent& event : events_) Deliver(event);
  events_.clear();
  told_events_ = 0;
}

void EngineLoop::Deliver(const SequenceEvent& event) {
  auto client = clients_.find(event.request);
  HEDDLE_CHECK(client != clients_.end(), "an event of a request that nobody waits for");
  GenerationEvent out{.branch = event.branch,
                      .cached_tokens = WholePages(event.cached_tokens),
                      .finished = event.finished,
                      .reason = event.reason};
  if (event.queued_us >= 0) {
    out.queued_seconds = Seconds(event.queued_us);
    stats_.last_queued_seconds = out.queued_seconds;
  }
  auto take = [](std::vector<engine::SampledToken>& from, int32_t begin, int32_t count,
                 std::vector<engine::SampledToken>* to) {
    auto first = std::make_move_iterator(from.begin() + begin);
    to->assign(first, first + count);
  };
  if (event.num_tokens > 0) take(result_.tokens, event.token_begin, event.num_tokens, &out.tokens);
  if (event.pooled >= 0) {
    out.embedding = std::move(result_.pooled[static_cast<size_t>(event.pooled)].values);
  }
  if (event.num_scores > 0) {
    take(result_.scores, event.score_begin, event.num_scores, &out.prompt_scores);
  }
  if (event.finished && event.reason == FinishReason::kError) {
    out.error = ErrorOfEnd(event, client->second);
  }
  StopWaiting(&client->second);
  if (event.num_tokens > 0) histories_.Token(event.request, event.num_tokens);
  if (event.finished) {
    histories_.Finished(event.request, event.branch, event.reason,
                        client->second.open_branches == 1, NowUs());
  }
  client->second.sink(std::move(out));
  if (event.finished && --client->second.open_branches == 0) clients_.erase(client);
}

// The status of a branch that ends with kError.
absl::Status EngineLoop::ErrorOfEnd(const SequenceEvent& event, const Client& client) const {
  if (!expired_.ok()) return expired_;
  if (!failure_.ok()) return failure_;
  return StatusOf(event.failure, event.num_drawn < client.bans_until);
}

void EngineLoop::Publish() {
  scheduler::SchedulerStats now = scheduler_.stats();
  TakeSchedulerStats(now, &stats_);
  ListAdapters();
  if (speculation_ != nullptr) {
    stats_.drafts = speculation_->stats();
    stats_.drafters = speculation_->counts();
    stats_.ahead = speculation_->ahead_stats();
    stats_.drafts.gained_seconds -= stats_.ahead.seconds;
  }
  std::lock_guard lock(mutex_);
  stats_.idle_seconds = published_.idle_seconds;  // Submit counts it
  published_ = stats_;
  if (last_step_us_ > progress_us_) {
    progress_us_ = last_step_us_;
    paused_before_us_ = paused_before_step_end_us_;
  }
}

// Names change with nearly every step where adapters take turns, and nobody reads them as often.
void EngineLoop::ListAdapters() {
  constexpr int64_t kIntervalUs = 100'000;
  if (scheduler_options_.adapter_slots == 0) return;
  AdapterStats& stats = stats_.adapters;
  stats.bytes = stats.pages * executor_->limits().page_bytes;
  const int64_t now_us = NowUs();
  if (now_us < listed_us_ + kIntervalUs && !scheduler_.idle()) return;
  listed_us_ = now_us;
  scheduler::AdapterLists lists = scheduler_.adapter_lists(AdapterStats::kMaxListed);
  if (lists == stats.lists) return;
  stats.lists = std::move(lists);
  stats.changed_at = UnixTime();
}

void EngineLoop::CheckWhenIdle() const {
#ifndef NDEBUG
  absl::Status status = scheduler_.CheckIntegrity();
  HEDDLE_CHECK(status.ok(), std::string(status.message()));
#endif
}

}  // namespace heddle::server
