#include "engine/sample/mask_ahead.h"

#include <pthread.h>

#include <utility>

namespace heddle::engine {

MaskAhead::~MaskAhead() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  posted_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::future<MaskAhead::Mask> MaskAhead::Find(grammar::Matcher matcher) {
  std::packaged_task<Mask()> task(
      [matcher = std::move(matcher)]() mutable { return matcher.Mask(); });
  std::future<Mask> mask = task.get_future();
  {
    std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  }
  posted_.notify_one();
  return mask;
}

void MaskAhead::Run() {
  pthread_setname_np(pthread_self(), "masks");
  std::unique_lock lock(mutex_);
  while (true) {
    posted_.wait(lock, [this] { return stop_ || !tasks_.empty(); });
    if (stop_) return;
    std::packaged_task<Mask()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    lock.lock();
  }
}

}  // namespace heddle::engine
