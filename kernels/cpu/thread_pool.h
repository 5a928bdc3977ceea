// Fork-join over a fixed set of threads, with a static partition: which thread computes what
// depends on sizes alone, so that caches stay warm from step to step.
//
// Waiting threads spin for some tens of microseconds (the gap between two ops of a forward), then
// sleep in the kernel, so that I/O threads can live on the same cores. The caller is thread 0 and
// takes part. A fork and join of spinning threads costs one or two microseconds.
// Thread-safety: Run and ForRange from one thread at a time; not reentrant.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace heddle::kernels::cpu {

class ThreadPool {
 public:
  // `num_threads` >= 1 counts the caller; `pin` binds thread i to the i-th core that this process
  // may use (the caller is left where it is).
  ThreadPool(int32_t num_threads, bool pin);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int32_t num_threads() const { return num_threads_; }

  using Body = void (*)(const void* context, int32_t thread);
  // Calls body(context, i) for every thread i < active, each on its own thread; returns when all
  // have. REQUIRES: 1 <= active <= num_threads().
  void Run(Body body, const void* context, int32_t active);

  // Calls body(begin, end, thread) on contiguous parts of [0, n). `item_cost` is a rough count of
  // nanoseconds per item: work too small to be worth a fork stays on the caller.
  template <typename F>
  void ForRange(int64_t n, double item_cost, const F& body) {
    if (n <= 0) return;
    struct Range {
      const F& body;
      int64_t n;
      int32_t parts;
    } range{body, n, PartsFor(n, item_cost)};
    if (range.parts == 1) return body(int64_t{0}, n, 0);
    Run(
        [](const void* context, int32_t thread) {
          const auto& r = *static_cast<const Range*>(context);
          r.body(r.n * thread / r.parts, r.n * (thread + 1) / r.parts, thread);
        },
        &range, range.parts);
  }

  // Calls body(item, thread) for each item of [0, n), handed out one by one: for items of unequal
  // cost. Which thread takes an item varies from run to run.
  template <typename F>
  void ForEach(int64_t n, double item_cost, const F& body) {
    int32_t parts = n > 0 ? PartsFor(n, item_cost) : 0;
    std::atomic<int64_t> next{0};
    ForRange(parts, kAlwaysFork, [&](int64_t, int64_t, int32_t thread) {
      for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < n;) body(i, thread);
    });
  }

  // Cores that this process may run on.
  static int32_t UsableCores();

 private:
  static constexpr double kAlwaysFork = 1e9;

  int32_t PartsFor(int64_t n, double item_cost) const;
  void WorkerLoop(int32_t thread);

  const int32_t num_threads_;
  // Written by the caller before it raises epoch_; read by workers after they see it raised.
  Body body_ = nullptr;
  const void* context_ = nullptr;
  int32_t active_ = 0;
  bool stop_ = false;
  alignas(64) std::atomic<uint32_t> epoch_{0};
  alignas(64) std::atomic<int32_t> pending_{0};
  std::vector<std::thread> workers_;
};

}  // namespace heddle::kernels::cpu
