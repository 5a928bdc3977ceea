#include "server/loop/engine_loop.h"

#include <pthread.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status.h"
#include "server/retry_after.h"

namespace heddle::server {

using scheduler::SequenceEvent;

scheduler::SchedulerOptions SchedulerOptionsFor(const engine::ExecutorLimits& limits,
                                                const EngineLoopOptions& options) {
  int32_t step_tokens = limits.max_batch_tokens;
  if (options.max_step_tokens > 0) step_tokens = std::min(step_tokens, options.max_step_tokens);
  return {.num_pages = limits.num_pages,
          .num_host_pages = limits.num_host_pages,
          .page_tokens = limits.page_tokens,
          .max_context = limits.max_context,
          .windows = limits.windows,
          .window_grain = limits.window_grain,
          .max_step_tokens = step_tokens,
          .max_step_seqs = limits.max_batch_seqs,
          .target_step_us = options.target_inter_token_us,
          .max_queue_us = options.max_queue_us,
          .prefix_cache = options.prefix_cache,
          .policy = options.policy,
          .starvation_us = options.starvation_us};
}

namespace {

absl::Status NothingToDraw() {
  return absl::InternalError(
      "No token can be drawn: the model's logits are not numbers, or every token is banned.");
}

// The embedding has `vocab` rows; no id from outside may miss them.
absl::Status CheckTokens(const GenerationRequest& request, int32_t vocab) {
  for (engine::TokenId token : request.prompt) {
    if (token < 0 || token >= vocab) {
      return absl::InvalidArgumentError(
          absl::StrCat("The prompt has token ", token, "; the model knows 0 to ", vocab - 1, "."));
    }
  }
  return absl::OkStatus();
}

double Seconds(int64_t microseconds) { return static_cast<double>(microseconds) * 1e-6; }

}  // namespace

void EngineLoop::Mailbox::Clear() {
  submissions.clear();
  cancellations.clear();
  cancel_all = false;
}

EngineLoop::EngineLoop(std::unique_ptr<engine::Executor> executor, const EngineLoopOptions& options)
    : executor_(std::move(executor)),
      scheduler_options_(SchedulerOptionsFor(executor_->limits(), options)),
      options_(options),
      scheduler_(scheduler_options_) {
  HEDDLE_CHECK(options.max_queue > 0, "max_queue must be positive");
  stats_.queue_limit = options.max_queue;
  stats_.queue_tokens_limit = options.max_queue_tokens;
  stats_.pages_total = scheduler_options_.num_pages;
  stats_.host_pages_total = scheduler_options_.num_host_pages;
  stats_.page_tokens = scheduler_options_.page_tokens;
  stats_.adapters.changed_at =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  published_ = stats_;
  thread_ = std::thread([this] { Run(); });
}

EngineLoop::~EngineLoop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    mail_.cancel_all = true;
    if (state_ == EngineState::kServing) state_ = EngineState::kDraining;
  }
  posted_.notify_one();
  thread_.join();
}

int64_t EngineLoop::NowUs() {
  auto since = Clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(since).count();
}

RequestId EngineLoop::NextId() { return RequestId{last_id_.fetch_add(1) + 1}; }

absl::Status EngineLoop::Submit(GenerationRequest request, EventSink sink) {
  HEDDLE_RETURN_IF_ERROR(scheduler::Scheduler::Validate(request, scheduler_options_));
  HEDDLE_RETURN_IF_ERROR(CheckTokens(request, executor_->limits().vocab));
  int64_t now_us = NowUs();
  {
    std::lock_guard lock(mutex_);
    if (state_ == EngineState::kFailed) {
      return absl::UnavailableError(
          absl::StrCat("The engine has failed and must be restarted: ", failure_.message()));
    }
    if (state_ != EngineState::kServing) {
      return absl::UnavailableError("The server is shutting down and takes no new requests.");
    }
    HEDDLE_RETURN_IF_ERROR(CheckRoom(request));
    posted_tokens_ += request.prompt.size();
    if (options_.policy == scheduler::PolicyKind::kFair) ++waiting_of_tenant_[request.tenant];
    bool had_work = !mail_.submissions.empty() ||
                    published_.running_sequences + published_.waiting_requests > 0;
    if (!had_work) progress_us_ = now_us;
    mail_.submissions.push_back({std::move(request), std::move(sink), now_us});
    idle_ = false;
  }
  posted_.notify_one();
  return absl::OkStatus();
}

// REQUIRES: mutex_ is held; waiting < max_queue.
absl::Status EngineLoop::CheckShare(uint64_t tenant, size_t waiting) const {
  if (options_.policy != scheduler::PolicyKind::kFair) return absl::OkStatus();
  auto it = waiting_of_tenant_.find(tenant);
  const int32_t own = it == waiting_of_tenant_.end() ? 0 : it->second;
  const int32_t free = options_.max_queue - static_cast<int32_t>(waiting);
  if (own < EngineLoopOptions::kShareOfFreeQueue * free) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("Your share of the queue is full: ", own, " requests of this API key wait and ",
                   free, " of ", options_.max_queue, " places are free."));
}

// The first that is heard of a request.
void EngineLoop::StopWaiting(Client* client) {
  if (!std::exchange(client->waits, false)) return;
  if (options_.policy != scheduler::PolicyKind::kFair) return;
  std::lock_guard lock(mutex_);
  auto it = waiting_of_tenant_.find(client->tenant);
  if (--it->second == 0) waiting_of_tenant_.erase(it);
}

// REQUIRES: mutex_ is held.
absl::Status EngineLoop::CheckRoom(const GenerationRequest& request) const {
  const size_t waiting =
      mail_.submissions.size() + static_cast<size_t>(published_.waiting_requests);
  const int64_t tokens = published_.waiting_tokens + static_cast<int64_t>(posted_tokens_);
  const int64_t with_this = tokens + static_cast<int64_t>(request.prompt.size());
  absl::Status full;
  if (waiting >= static_cast<size_t>(options_.max_queue)) {
    full = absl::ResourceExhaustedError(absl::StrCat("The queue is full: ", waiting,
                                                     " requests wait and the limit is ",
                                                     options_.max_queue, "."));
  } else if (options_.max_queue_tokens > 0 && waiting > 0 &&
             with_this > options_.max_queue_tokens) {
    full = absl::ResourceExhaustedError(
        absl::StrCat("The queue is full: with this prompt ", with_this,
                     " tokens would wait and the limit is ", options_.max_queue_tokens, "."));
  }
  if (full.ok()) full = CheckShare(request.tenant, waiting);
  if (full.ok()) return full;
  // In the time that the request that started last had to wait, the present queue has its turn.
  return WithRetryAfter(std::move(full), published_.last_queued_seconds);
}

void EngineLoop::Cancel(RequestId id) { CancelBranch(id, -1); }

void EngineLoop::CancelBranch(RequestId id, int32_t branch) {
  {
    std::lock_guard lock(mutex_);
    mail_.cancellations.push_back({id, branch});
  }
  posted_.notify_one();
}

EngineStats EngineLoop::Stats() const {
  std::lock_guard lock(mutex_);
  EngineStats stats = published_;
  stats.waiting_requests += static_cast<int32_t>(mail_.submissions.size());
  stats.waiting_tokens += static_cast<int64_t>(posted_tokens_);
  stats.state = state_;
  if (stats.running_sequences + stats.waiting_requests > 0) {
    stats.busy_since_seconds = Seconds(std::max<int64_t>(1, NowUs() - progress_us_));
  }
  return stats;
}

absl::Status EngineLoop::Failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

bool EngineLoop::Drain(Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  if (state_ == EngineState::kServing) state_ = EngineState::kDraining;
  auto is_over = [this] { return idle_ || state_ == EngineState::kFailed; };
  bool in_time = drained_.wait_until(lock, deadline, is_over);
  if (in_time) return state_ != EngineState::kFailed;
  mail_.cancel_all = true;
  posted_.notify_one();
  drained_.wait(lock, [this] { return idle_; });
  return false;
}

bool EngineLoop::FailIfStuck(std::chrono::duration<double> limit) {
  if (Stats().busy_since_seconds <= limit.count()) return false;
  const std::unique_lock own(own_, std::try_to_lock);
  const double busy = Stats().busy_since_seconds;  // a step may have ended just now
  if (!own.owns_lock() || busy <= limit.count()) return false;
  Mailbox mail;
  {
    std::lock_guard lock(mutex_);
    state_ = EngineState::kFailed;  // nothing is posted from here on
    failure_ = absl::InternalError(
        absl::StrFormat("A step of the engine has not ended for %.0f s.", std::floor(busy)));
    stuck_ = true;
    std::swap(mail, mail_);
    posted_tokens_ = 0;
  }
  TakeIn(&mail);
  FailAll();
  std::lock_guard lock(mutex_);
  idle_ = true;  // for the drain: the loop's thread will not say so
  drained_.notify_all();
  return true;
}

void EngineLoop::Run() {
  pthread_setname_np(pthread_self(), "engine-loop");
  while (TakeMail()) {
    std::lock_guard own(own_);
    TakeIn(&taken_);
    if (failure_.ok()) {
      RunStep();
    } else {
      FailAll();  // what came in while the executor failed
    }
  }
}

// Waits until there is something to do. False: the loop is to end, and nothing is left.
bool EngineLoop::TakeMail() {
  std::unique_lock lock(mutex_);
  if (!has_work_ && mail_.empty()) {
    idle_ = true;
    drained_.notify_all();
    posted_.wait(lock, [this] { return stop_ || !mail_.empty(); });
    if (mail_.empty()) return false;
  }
  taken_.Clear();
  std::swap(taken_, mail_);
  // They count as waiting until the next Publish, when the scheduler tells how many still do.
  published_.waiting_requests += static_cast<int32_t>(taken_.submissions.size());
  published_.waiting_tokens += static_cast<int64_t>(std::exchange(posted_tokens_, 0));
  return true;
}

// What cancellations bring stands behind what the last step brought, until it is delivered.
void EngineLoop::TakeIn(Mailbox* mail) {
  for (Submission& submission : mail->submissions) {
    int32_t branches = submission.request.num_branches;
    trace_.Queued(submission.request, submission.arrival_us);
    clients_[submission.request.id] = {std::move(submission.sink), branches,
                                       submission.request.tenant};
    scheduler_.Add(std::move(submission.request), submission.arrival_us);
  }
  for (const Cancellation& cancellation : mail->cancellations) {
    if (cancellation.branch < 0) {
      scheduler_.Cancel(cancellation.id, FinishReason::kCancelled, &events_);
    } else {
      scheduler_.CancelBranch(cancellation.id, cancellation.branch, &events_);
    }
  }
  if (mail->cancel_all) scheduler_.CancelAll(FinishReason::kCancelled, &events_);
}

// After a plan: a request that can start is started, however long it has waited.
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
  absl::Status status = num_flights_ == 0 ? BeginStep() : absl::OkStatus();
  if (status.ok() && num_flights_ > 0) status = BeginStepAhead();
  Publish();  // before the sinks: a client that has its last token finds its pages free in Stats
  if (!status.ok()) return Fail(std::move(status));
  // Also after the last request there is one more plan: that which ends its sequences.
  has_work_ = num_flights_ > 0;
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
  Flight& next = NextFlight();
  next.planned_us = NowUs();
  scheduler_.Plan(next.planned_us, &next.plan);
  if (next.plan.empty()) return absl::OkStatus();
  HEDDLE_RETURN_IF_ERROR(Launch());
  next.waited_us = step_done_us_ > 0 ? NowUs() - step_done_us_ : -1;
  return absl::OkStatus();
}

// The step behind the one in flight, if its plan need not wait for that one's tokens.
absl::Status EngineLoop::BeginStepAhead() {
  if (!options_.plan_ahead || executor_->max_in_flight() < 2) return absl::OkStatus();
  Flight& next = NextFlight();
  next.planned_us = NowUs();
  if (!scheduler_.PlanAhead(next.planned_us, &next.plan)) {
    stats_.plan_seconds += Seconds(NowUs() - next.planned_us);
    return absl::OkStatus();
  }
  ++stats_.steps_ahead;
  next.waited_us = 0;
  return Launch();
}

// Submits what was planned last.
absl::Status EngineLoop::Launch() {
  Flight& next = NextFlight();
  next.notes.assign(scheduler_.notes().begin(), scheduler_.notes().end());
  stats_.plan_seconds += Seconds(NowUs() - next.planned_us);
  ++num_flights_;
  return Lend([&] { return executor_->Submit(next.plan); });
}

// A call of the executor, during which FailIfStuck may do what is the loop's to do.
template <typename Call>
absl::Status EngineLoop::Lend(Call&& call) {
  own_.unlock();
  absl::Status status = std::forward<Call>(call)();
  own_.lock();
  return failure_.ok() ? status : failure_;
}

// What the last step brought is delivered, and booked, while the next one runs.
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
  if (!status.ok()) return Fail(std::move(status));
  scheduler_.Commit(result_, executed_us, &events_);
  stats_.plan_seconds += Seconds(NowUs() - executed_us);
  CountStep(&flights_[oldest_flight_], executed_us);
  oldest_flight_ = (oldest_flight_ + 1) % flights_.size();
  --num_flights_;
}

// What Emit tells of the step, which it does while the next one runs.
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
  {
    std::lock_guard lock(mutex_);
    state_ = EngineState::kFailed;
    failure_ = std::move(error);
  }
  FailAll();
}

void EngineLoop::FailAll() {
  has_work_ = false;
  num_flights_ = 0;
  step_done_us_ = 0;
  scheduler_.CancelAll(FinishReason::kError, &events_);
  Publish();
  Emit();
}

// Hands out all events that there are; those with tokens are of the last committed step.
void EngineLoop::Emit() {
  if (!notes_.empty()) trace_.Step(notes_, noted_begin_us_, step_done_us_);
  notes_.clear();
  for (const SequenceEvent& event : events_) Deliver(event);
  events_.clear();
}

void EngineLoop::Deliver(const SequenceEvent& event) {
  auto client = clients_.find(event.request);
  HEDDLE_CHECK(client != clients_.end(), "an event of a request that nobody waits for");
  GenerationEvent out{.branch = event.branch,
                      .cached_tokens = event.cached_tokens,
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
  if (event.num_samples > 0) {
    take(result_.samples, event.sample_begin, event.num_samples, &out.tokens);
    for (int32_t i = 0; i < event.num_forced; ++i) {
      const engine::SampledToken& drawn = out.tokens.front();
      out.tokens.push_back({.id = drawn.id, .token = drawn.forced[static_cast<size_t>(i)]});
    }
  }
  if (event.pooled >= 0) {
    out.embedding = std::move(result_.pooled[static_cast<size_t>(event.pooled)].values);
  }
  if (event.num_scores > 0) {
    take(result_.scores, event.score_begin, event.num_scores, &out.prompt_scores);
  }
  if (event.finished && event.reason == FinishReason::kError) {
    out.error = ErrorOfEnd();
  }
  StopWaiting(&client->second);
  if (event.num_samples > 0) trace_.Token(event.request, event.num_samples + event.num_forced);
  if (event.finished) {
    trace_.Finished(event.request, event.branch, event.reason, client->second.open_branches == 1,
                    NowUs());
  }
  client->second.sink(std::move(out));
  if (event.finished && --client->second.open_branches == 0) clients_.erase(client);
}

// Of a branch that ends with kError.
absl::Status EngineLoop::ErrorOfEnd() const {
  if (!expired_.ok()) return expired_;
  if (!failure_.ok()) return failure_;
  return NothingToDraw();
}

void EngineLoop::Publish() {
  scheduler::SchedulerStats now = scheduler_.stats();
  stats_.running_sequences = now.running_sequences;
  stats_.waiting_requests = now.waiting_requests;
  stats_.waiting_tokens = now.waiting_tokens;
  stats_.pages_used = now.pages_used;
  stats_.pages_cached = now.pages_cached;
  stats_.host_pages_used = now.host_pages_used;
  stats_.pages_swapped_out = now.pages_swapped_out;
  stats_.pages_swapped_in = now.pages_swapped_in;
  stats_.cached_tokens = now.cached_tokens;
  stats_.prompt_tokens = now.prompt_tokens;
  stats_.generated_tokens = now.generated_tokens;
  stats_.forced_tokens = now.forced_tokens;
  stats_.step_tokens = now.step_tokens;
  stats_.budget_tokens = now.budget_tokens;
  stats_.preemptions = now.preemptions;
  stats_.overdue_requests = now.overdue;
  std::lock_guard lock(mutex_);
  published_ = stats_;
  progress_us_ = std::max(progress_us_, last_step_us_);
}

void EngineLoop::CheckWhenIdle() const {
#ifndef NDEBUG
  absl::Status status = scheduler_.CheckIntegrity();
  HEDDLE_CHECK(status.ok(), std::string(status.message()));
#endif
}

}  // namespace heddle::server
