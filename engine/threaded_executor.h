// An executor that runs its steps on its own thread, so that the caller has time between Submit and
// Wait for work that does not depend on the step.
//
// Wait takes back a plan that the thread has not begun and runs it on the calling thread: a caller
// without other work pays for a wake-up, but not for handing the step over and back.
//
// Thread-safety: as Executor's. One thread at a time uses the inner executor, not always the same
// one; each sees what the other wrote.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "engine/executor.h"

namespace heddle::engine {

class ThreadedExecutor final : public Executor {
 public:
  // Starts the thread. `inner` is not null.
  explicit ThreadedExecutor(std::unique_ptr<Executor> inner);
  // Waits for a running step.
  ~ThreadedExecutor() override;

  const ExecutorLimits& limits() const override { return inner_->limits(); }
  absl::Status Submit(const StepPlan& plan, const StepLocals& locals) override;
  absl::Status Wait(StepResult* result) override;
  absl::Status status() const override { return inner_->status(); }
  // REQUIRES for both: no step is on the thread, as when Wait has returned its error.
  bool Abandon() override { return inner_->Abandon(); }
  absl::Status Recover() override { return inner_->Recover(); }

 private:
  enum class State { kIdle, kSubmitted, kRunning, kDone };

  void Run();
  absl::Status Execute(StepResult* result);

  const std::unique_ptr<Executor> inner_;
  std::mutex mutex_;
  std::condition_variable submitted_;  // tells the thread of a plan, or the end
  std::condition_variable done_;       // tells Wait
  // GUARDED_BY(mutex_), except plan_, locals_ and result_: `state_` says which thread uses them.
  State state_ = State::kIdle;
  bool stop_ = false;
  absl::Status status_;
  const StepPlan* plan_ = nullptr;
  StepLocals locals_;
  StepResult result_;
  std::thread thread_;  // last: it uses everything above
};

}  // namespace heddle::engine
