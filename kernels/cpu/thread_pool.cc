#include "kernels/cpu/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>

#include "base/check.h"

namespace heddle::kernels::cpu {
namespace {

// A pause takes 40 to 140 cycles on x86 of the last ten years: 30 to 100 microseconds of spinning.
// Longer than the serial part between two ops of a forward, shorter than a scheduler's time slice.
constexpr int kSpins = 2000;

// Forking pays if what it saves exceeds its own cost of one or two microseconds.
constexpr double kMinPartNs = 3000;

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins, then sleeps, until `value` differs from `old`; returns what it has become.
template <typename T>
T AwaitChange(const std::atomic<T>& value, T old) {
  for (int i = 0; i < kSpins; ++i) {
    T now = value.load(std::memory_order_acquire);
    if (now != old) return now;
    Pause();
  }
  value.wait(old, std::memory_order_acquire);
  return value.load(std::memory_order_acquire);
}

std::vector<int> CoreIds() {
  std::vector<int> ids;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int i = 0; i < CPU_SETSIZE; ++i) {
      if (CPU_ISSET(i, &set)) ids.push_back(i);
    }
  }
  if (ids.empty()) ids.push_back(0);
  return ids;
}

// Best effort: a thread that cannot be pinned still works.
void PinTo(int core, std::thread& thread) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  pthread_setaffinity_np(thread.native_handle(), sizeof(set), &set);
}

}  // namespace

int32_t ThreadPool::UsableCores() { return static_cast<int32_t>(CoreIds().size()); }

ThreadPool::ThreadPool(int32_t num_threads, bool pin) : num_threads_(num_threads) {
  HEDDLE_CHECK(num_threads >= 1, "a pool has at least its caller");
  std::vector<int> cores = CoreIds();
  for (int32_t i = 1; i < num_threads; ++i) {
    workers_.emplace_back([this, i] { WorkerLoop(i); });
    if (pin) PinTo(cores[static_cast<size_t>(i) % cores.size()], workers_.back());
  }
}

ThreadPool::~ThreadPool() {
  stop_ = true;
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::Run(Body body, const void* context, int32_t active) {
  HEDDLE_CHECK(active >= 1 && active <= num_threads_, "more parts than threads");
  if (active == 1) return body(context, 0);
  body_ = body;
  context_ = context;
  active_ = active;
  // Every worker checks in, also the idle ones: none may still be reading the fields above when
  // the next call writes them.
  pending_.store(num_threads_ - 1, std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  body(context, 0);
  int32_t left = pending_.load(std::memory_order_acquire);
  while (left != 0) left = AwaitChange(pending_, left);
}

int32_t ThreadPool::PartsFor(int64_t n, double item_cost) const {
  double worth = static_cast<double>(n) * item_cost / kMinPartNs;
  int64_t parts = worth >= num_threads_ ? num_threads_ : static_cast<int64_t>(worth);
  return static_cast<int32_t>(std::clamp<int64_t>(std::min(parts, n), 1, num_threads_));
}

void ThreadPool::WorkerLoop(int32_t thread) {
  uint32_t seen = 0;
  while (true) {
    // The caller waits for all workers, so that an epoch is never skipped.
    seen = AwaitChange(epoch_, seen);
    if (stop_) return;
    if (thread < active_) body_(context_, thread);
    if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) pending_.notify_one();
  }
}

}  // namespace heddle::kernels::cpu
