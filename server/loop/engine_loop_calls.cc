// Calls of other threads to the loop.
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "server/loop/engine_loop.h"
#include "server/loop/request_checks.h"
#include "server/retry_after.h"

namespace heddle::server {

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
    if (state_ == EngineState::kRecovering) {
      return WithRetryAfter(absl::UnavailableError(published_.why), kRecoverySeconds);
    }
    if (state_ != EngineState::kServing) {
      return absl::UnavailableError("The server is shutting down and takes no new requests.");
    }
    HEDDLE_RETURN_IF_ERROR(CheckRoom(request));
    posted_tokens_ += request.prompt.size();
    room_.Enter(ClientOf(request));
    EndIdleTime();
    mail_.submissions.push_back({std::move(request), std::move(sink), now_us});
    idle_ = false;
  }
  posted_.notify_one();
  return absl::OkStatus();
}

// Work comes: if there was none, the time without progress begins now. REQUIRES: mutex_ is held.
void EngineLoop::EndIdleTime() {
  const bool had_work =
      !mail_.submissions.empty() || published_.running_sequences + published_.waiting_requests > 0;
  if (had_work) return;
  const int64_t now_us = NowUs();
  published_.idle_seconds += Seconds(now_us - progress_us_);
  progress_us_ = now_us;
  paused_before_us_ = pauses_.Us(now_us);
}

// Something has come of the request for the first time: it no longer waits.
void EngineLoop::StopWaiting(Client* client) {
  if (!std::exchange(client->waits, false)) return;
  if (!scheduler_.tells_clients_apart()) return;
  std::lock_guard lock(mutex_);
  room_.Leave(client->number);
}

// REQUIRES: mutex_ is held.
absl::Status EngineLoop::CheckRoom(const GenerationRequest& request) const {
  const int64_t waiting =
      static_cast<int64_t>(mail_.submissions.size()) + published_.waiting_requests;
  const int64_t waiting_tokens = published_.waiting_tokens + static_cast<int64_t>(posted_tokens_);
  absl::Status full = room_.Check(ClientOf(request), static_cast<int64_t>(request.prompt.size()),
                                  waiting, waiting_tokens);
  if (full.ok()) return full;
  // The suggested delay is the time for which the most recently started request had to wait.
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

void EngineLoop::Pause(RequestId id) {
  {
    std::lock_guard lock(mutex_);
    mail_.pause_orders.push_back({id, true});
  }
  posted_.notify_one();
}

void EngineLoop::Resume(RequestId id) {
  {
    std::lock_guard lock(mutex_);
    EndIdleTime();
    mail_.pause_orders.push_back({id, false});
  }
  posted_.notify_one();
}

void EngineLoop::ForkContext(scheduler::ContextId from, int32_t num_tokens,
                             scheduler::ContextId to) {
  Post({.from = from, .num_tokens = num_tokens, .to = to});
}

void EngineLoop::JoinContexts(scheduler::ContextJoin join) {
  const scheduler::ContextId to = join.to;
  Post({.to = to, .join = std::move(join)});
}

void EngineLoop::DropContext(scheduler::ContextId id) { Post({.from = id}); }

void EngineLoop::Post(ContextOrder order) {
  {
    std::lock_guard lock(mutex_);
    if (state_ == EngineState::kFailed) return;
    mail_.context_orders.push_back(std::move(order));
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
    const int64_t now_us = NowUs();
    const int64_t paused_us = pauses_.Us(now_us) - paused_before_us_;
    stats.busy_since_seconds = Seconds(std::max<int64_t>(1, now_us - progress_us_ - paused_us));
  } else {
    stats.idle_seconds += Seconds(NowUs() - progress_us_);
  }
  return stats;
}

absl::Status EngineLoop::Failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

bool EngineLoop::Drain(Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  if (state_ == EngineState::kServing || state_ == EngineState::kRecovering) {
    state_ = EngineState::kDraining;
  }
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
    state_ = EngineState::kFailed;  // from here on nothing is posted
    failure_ = absl::InternalError(
        absl::StrFormat("A step of the engine has not ended for %.0f s.", std::floor(busy)));
    stuck_ = true;
    std::swap(mail, mail_);
    posted_tokens_ = 0;
  }
  TakeIn(&mail);
  FailAll();
  std::lock_guard lock(mutex_);
  idle_ = true;  // for Drain: the loop's thread will not report it
  drained_.notify_all();
  return true;
}

}  // namespace heddle::server
