// The loop while its executor may come back.
#include <string>
#include <utility>

#include "server/loop/engine_loop.h"

namespace heddle::server {

void EngineLoop::CheckExecutor() {
  {
    std::lock_guard lock(mutex_);
    mail_.checks_executor = true;
  }
  posted_.notify_one();
}

// Whether the executor may work again. Then it has no step any more, sequences have given up their
// pages, and Recover is to be called until it is over.
bool EngineLoop::BeginRecovery(const absl::Status& error) {
  if (!failure_.ok() || !executor_->Abandon()) return false;
  has_work_ = false;
  flights_.Clear();
  step_done_us_ = 0;
  Emit();  // the events of the last step that has gone well
  scheduler_.ForgetPages(NowUs(), &notes_);
  noted_begin_us_ = step_done_us_ = NowUs();
  Emit();
  step_done_us_ = 0;
  SetRecovering(true, std::string(error.message()));
  return true;
}

// One look at the executor. Time that passes meanwhile is no time of a step that does not end.
void EngineLoop::Recover() {
  const absl::Status status = executor_->Recover();
  last_step_us_ = NowUs();
  paused_before_step_end_us_ = pauses_.Us(last_step_us_);
  if (absl::IsUnavailable(status)) {
    Publish();
    Emit();
    Expire();
    return;
  }
  if (status.ok()) ++stats_.recoveries;
  SetRecovering(false, "");
  Publish();
  Emit();
  if (!status.ok()) return FailForGood(status);
  has_work_ = !scheduler_.idle();  // the next round plans
}

void EngineLoop::SetRecovering(bool recovers, const std::string& why) {
  is_recovering_ = recovers;
  stats_.why = why;
  Publish();
  std::lock_guard lock(mutex_);
  recovers_ = recovers;
  if (state_ == EngineState::kServing && recovers) state_ = EngineState::kRecovering;
  if (state_ == EngineState::kRecovering && !recovers) state_ = EngineState::kServing;
}

}  // namespace heddle::server
