#include "engine/threaded_executor.h"

#include <pthread.h>

#include <utility>

#include "base/check.h"
#include "base/status.h"

namespace heddle::engine {

ThreadedExecutor::ThreadedExecutor(std::unique_ptr<Executor> inner) : inner_(std::move(inner)) {
  HEDDLE_CHECK(inner_ != nullptr, "a threaded executor of nothing");
  thread_ = std::thread([this] { Run(); });
}

ThreadedExecutor::~ThreadedExecutor() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  submitted_.notify_one();
  thread_.join();
}

absl::Status ThreadedExecutor::Submit(const StepPlan& plan, const StepLocals& locals) {
  {
    std::lock_guard lock(mutex_);
    HEDDLE_CHECK(state_ == State::kIdle, "Submit before the last step was waited for");
    plan_ = &plan;
    locals_ = locals;
    state_ = State::kSubmitted;
  }
  submitted_.notify_one();
  return absl::OkStatus();
}

absl::Status ThreadedExecutor::Wait(StepResult* result) {
  std::unique_lock lock(mutex_);
  HEDDLE_CHECK(state_ != State::kIdle, "Wait without Submit");
  if (state_ == State::kSubmitted) {
    state_ = State::kIdle;
    lock.unlock();
    return Execute(result);
  }
  done_.wait(lock, [this] { return state_ == State::kDone; });
  state_ = State::kIdle;
  std::swap(*result, result_);
  return std::exchange(status_, absl::OkStatus());
}

absl::Status ThreadedExecutor::Execute(StepResult* result) {
  const StepLocals locals = std::exchange(locals_, {});
  HEDDLE_RETURN_IF_ERROR(inner_->Submit(*plan_, locals));
  return inner_->Wait(result);
}

void ThreadedExecutor::Run() {
  pthread_setname_np(pthread_self(), "engine-step");
  std::unique_lock lock(mutex_);
  while (true) {
    submitted_.wait(lock, [this] { return stop_ || state_ == State::kSubmitted; });
    if (stop_) return;
    state_ = State::kRunning;
    lock.unlock();
    absl::Status status = Execute(&result_);
    lock.lock();
    status_ = std::move(status);
    state_ = State::kDone;
    done_.notify_one();
  }
}

}  // namespace heddle::engine
