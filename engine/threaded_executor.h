// An executor whose steps run on a thread of its own, so that the caller has time between Submit
// and Wait for what does not depend on the step.
//
// Wait takes a plan back that the thread has not begun, and runs it on the caller: whoever has
// nothing else to do pays for a wake-up, and not for handing the step over and back.
//
// Thread-safety: as Executor's. The inner executor is used by one thread at a time, not always the
// same one; what one wrote the next one sees.
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
  // Waits for a step that has begun.
  ~ThreadedExecutor() override;

  const ExecutorLimits& limits() const override { return inner_->limits(); }
  absl::Status Submit(const StepPlan& plan) override;
  absl::Status Wait(StepResult* result) override;

 private:
  enum class State { kIdle, kSubmitted, kRunning, kDone };

  void Run();
  absl::Status Execute(const StepPlan& plan, StepResult* result);

  const std::unique_ptr<Executor> inner_;
  std::mutex mutex_;
  std::condition_variable submitted_;  // to the thread: a plan, or the end
  std::condition_variable done_;       // to Wait
  // GUARDED_BY(mutex_), but for plan_ and result_, which are whose turn `state_` says.
  State state_ = State::kIdle;
  bool stop_ = false;
  absl::Status status_;
  const StepPlan* plan_ = nullptr;
  StepResult result_;
  std::thread thread_;  // last: it uses everything above
};

}  // namespace heddle::engine
