#include "server/grpc/call_worker.h"

#include <pthread.h>

#include <chrono>
#include <utility>

namespace heddle::server {
namespace {

constexpr std::chrono::milliseconds kTick(250);

}  // namespace

CallWorker::CallWorker(const HandlerFactory& make_handler)
    : handler_(make_handler([this](std::function<void()> task) { Post(std::move(task)); })),
      thread_([this] { Run(); }) {}

CallWorker::~CallWorker() { Stop(); }

void CallWorker::Post(std::function<void()> task) {
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return;
    tasks_.push_back(std::move(task));
    if (tasks_.size() > 1) return;  // the thread was woken for an earlier task
  }
  wake_.notify_one();
}

void CallWorker::Add(std::shared_ptr<PendingCall> call) { pending_.insert(std::move(call)); }

void CallWorker::Remove(const std::shared_ptr<PendingCall>& call) { pending_.erase(call); }

void CallWorker::Stop() {
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return;
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void CallWorker::Run() {
  pthread_setname_np(pthread_self(), "grpc-calls");
  Clock::time_point next_tick = Clock::now() + kTick;
  std::vector<std::function<void()>> tasks;
  while (true) {
    bool stopping = false;
    {
      std::unique_lock lock(mutex_);
      wake_.wait_until(lock, next_tick, [this] { return stopping_ || !tasks_.empty(); });
      std::swap(tasks, tasks_);
      stopping = stopping_;
    }
    for (std::function<void()>& task : tasks) RunCaught(task);
    tasks.clear();
    if (stopping) break;
    if (Clock::now() >= next_tick) {
      RunCaught([this] { Tick(); });
      next_tick = Clock::now() + kTick;
    }
  }
  const auto left = std::exchange(pending_, {});
  for (const std::shared_ptr<PendingCall>& call : left) call->OnShutdown();
  handler_.reset();  // its inbox must post nothing more
}

// The last resort: an exception that a call did not catch costs that call, and not the thread.
void CallWorker::RunCaught(const std::function<void()>& task) {
  try {
    task();
  } catch (...) {
    handler_->OnException("call", "").IgnoreError();
  }
}

void CallWorker::Tick() {
  const auto calls = pending_;  // a copy, because a tick may end its call
  const Clock::time_point now = Clock::now();
  for (const std::shared_ptr<PendingCall>& call : calls) call->OnTick(now);
}

}  // namespace heddle::server
