#include "kernels/cpu/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>

#include "base/check.h"
#include "kernels/await.h"
#include "kernels/cpu/usable_cpus.h"

namespace heddle::kernels::cpu {
namespace {

// Fields of the gate. The fork's number wraps around: a worker that slept through exactly 2^21
// forks would miss one more.
constexpr uint32_t kJoinedMask = 0x3ff;  // more workers than cpu_device.cc allows
constexpr uint32_t kClosed = 0x400;
constexpr int kForkShift = 11;

uint32_t ForkOf(uint32_t gate) { return gate >> kForkShift; }

// A worker that has spun in vain sleeps at once, so that I/O threads get its processor.
constexpr int kYields = 0;

// Forking pays if it saves more than its own cost of one or two microseconds.
constexpr double kMinPartNs = 3000;

// Best effort: a thread that cannot be pinned still works.
void PinTo(int cpu, std::thread& thread) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  pthread_setaffinity_np(thread.native_handle(), sizeof(set), &set);
}

}  // namespace

ThreadPool::ThreadPool(int32_t num_threads, bool pin)
    : num_threads_(num_threads), cursors_(static_cast<size_t>(num_threads)), gate_(kClosed) {
  HEDDLE_CHECK(num_threads >= 1 && num_threads <= static_cast<int32_t>(kJoinedMask) + 1,
               "a pool has its caller and at most 1023 workers");
  const std::vector<int> cpus = pin ? FindUsableCpus().ids : std::vector<int>();
  for (int32_t i = 1; i < num_threads; ++i) {
    workers_.emplace_back([this, i] { WorkerLoop(i); });
    pthread_setname_np(workers_.back().native_handle(), "compute");
    if (pin) PinTo(cpus[static_cast<size_t>(i) % cpus.size()], workers_.back());
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  gate_.store(((ForkOf(gate_.load()) + 1) << kForkShift) | kClosed, std::memory_order_release);
  gate_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::Fork(Body body, const void* context, bool everyone) {
  if (num_threads_ == 1) return body(context, 0);
  body_ = body;
  context_ = context;
  done_.store(0, std::memory_order_relaxed);
  const uint32_t fork = ForkOf(gate_.load(std::memory_order_relaxed)) + 1;
  gate_.store(fork << kForkShift, std::memory_order_release);
  gate_.notify_all();
  body(context, 0);
  int spins = kMaxSpins;
  const auto workers = static_cast<uint32_t>(num_threads_ - 1);
  if (everyone) {
    Await(done_, kYields, &spins, [workers](uint32_t done) { return done == workers; });
  }
  const uint32_t joined = gate_.fetch_or(kClosed, std::memory_order_acq_rel) & kJoinedMask;
  Await(done_, kYields, &spins, [joined](uint32_t done) { return done == joined; });
}

int32_t ThreadPool::PartsFor(int64_t n, double item_cost) const {
  double worth = static_cast<double>(n) * item_cost / kMinPartNs;
  int64_t parts = worth >= num_threads_ ? num_threads_ : static_cast<int64_t>(worth);
  return static_cast<int32_t>(std::clamp<int64_t>(std::min(parts, n), 1, num_threads_));
}

// Whether this thread has become one of those that the fork of `gate` waits for.
bool ThreadPool::Join(uint32_t gate) {
  const uint32_t fork = ForkOf(gate);
  while (ForkOf(gate) == fork && (gate & kClosed) == 0) {
    if (gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acq_rel,
                                    std::memory_order_acquire)) {
      return true;
    }
  }
  return false;
}

void ThreadPool::WorkerLoop(int32_t thread) {
  uint32_t last = 0;
  int spins = kMaxSpins;
  while (true) {
    const uint32_t gate =
        Await(gate_, kYields, &spins, [last](uint32_t now) { return ForkOf(now) != last; });
    if (stop_.load(std::memory_order_relaxed)) return;
    last = ForkOf(gate);
    if (!Join(gate)) continue;
    body_(context_, thread);
    done_.fetch_add(1, std::memory_order_acq_rel);
    done_.notify_one();
  }
}

}  // namespace heddle::kernels::cpu
