// Fork-join over a fixed set of threads. Work is partitioned statically, so that caches stay warm
// from step to step, and taken in small pieces: a thread that has finished takes pieces of others,
// so that a thread that lost its core to another process delays nobody. A fork does not even wait
// for such a thread to notice it.
//
// Waiting threads spin for some tens of microseconds (the gap between two ops of a forward), then
// sleep in the kernel, so that I/O threads can share the cores; a thread that spun in vain spins
// less the next time. The caller is thread 0 and takes part. A fork and join of spinning threads
// costs about a microsecond.
// Thread-safety: ForRange, ForEach and OnEveryThread from one thread at a time; not reentrant.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace heddle::kernels::cpu {

class ThreadPool {
 public:
  // `num_threads` >= 1 includes the caller; `pin` binds thread i to the i-th CPU of usable_cpus.h
  // (the caller is not bound).
  ThreadPool(int32_t num_threads, bool pin);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int32_t num_threads() const { return num_threads_; }

  // Calls body(begin, end, thread) on pieces that together are [0, n), each item once; the pieces
  // of one thread run one after the other. `item_cost` is an estimate in nanoseconds per item: work
  // too small for a fork stays on the caller, in one piece.
  template <typename F>
  void ForRange(int64_t n, double item_cost, const F& body) {
    if (n <= 0) return;
    const int32_t parts = PartsFor(n, item_cost);
    if (parts == 1) return body(int64_t{0}, n, 0);
    const auto piece = static_cast<int64_t>(kPieceNs / std::max(item_cost, 1.0));
    TakeInPieces(n, parts, std::max<int64_t>(piece, 1), body);
  }

  // Calls body(item, thread) for each item of [0, n), one by one, for items of unequal cost.
  template <typename F>
  void ForEach(int64_t n, double item_cost, const F& body) {
    if (n <= 0) return;
    auto range = [&body](int64_t begin, int64_t end, int32_t thread) {
      for (int64_t i = begin; i < end; ++i) body(i, thread);
    };
    const int32_t parts = PartsFor(n, item_cost);
    if (parts == 1) return range(int64_t{0}, n, 0);
    TakeInPieces(n, parts, /*piece=*/1, range);
  }

  // Calls body(thread) once on every thread, and waits for all.
  template <typename F>
  void OnEveryThread(const F& body) {
    Fork([](const void* context, int32_t thread) { (*static_cast<const F*>(context))(thread); },
         &body, /*everyone=*/true);
  }

 private:
  // Target time of a piece: how late a thread may be when all others are done. Taking a piece costs
  // some ten nanoseconds.
  static constexpr double kPieceNs = 4000;

  // The beginning of a part's next piece.
  struct alignas(64) Cursor {
    std::atomic<int64_t> next{0};
  };
  using Body = void (*)(const void* context, int32_t thread);

  template <typename F>
  void TakeInPieces(int64_t n, int32_t parts, int64_t piece, const F& body) {
    struct Range {
      const F& body;
      std::vector<Cursor>& cursors;
      int64_t n;
      int64_t piece;
      int32_t parts;
    } range{body, cursors_, n, piece, parts};
    for (int32_t p = 0; p < parts; ++p) {
      cursors_[static_cast<size_t>(p)].next.store(n * p / parts, std::memory_order_relaxed);
    }
    Fork(
        [](const void* context, int32_t thread) {
          const auto& r = *static_cast<const Range*>(context);
          if (thread >= r.parts) return;
          for (int32_t i = 0; i < r.parts; ++i) {  // its own part first
            const int32_t part = (thread + i) % r.parts;
            const int64_t end = r.n * (part + 1) / r.parts;
            std::atomic<int64_t>& next = r.cursors[static_cast<size_t>(part)].next;
            while (true) {
              const int64_t begin = next.fetch_add(r.piece, std::memory_order_relaxed);
              if (begin >= end) break;
              r.body(begin, std::min(begin + r.piece, end), thread);
            }
          }
        },
        &range, /*everyone=*/false);
  }

  // Calls body(context, 0) here and body(context, i) on the other threads that notice it before the
  // call here has returned, or on all if `everyone`; returns when all of them have.
  void Fork(Body body, const void* context, bool everyone);
  int32_t PartsFor(int64_t n, double item_cost) const;
  void WorkerLoop(int32_t thread);
  bool Join(uint32_t gate);

  const int32_t num_threads_;
  std::vector<Cursor> cursors_;  // [num_threads]
  // Written by the caller before it opens the gate; read by workers after they joined.
  Body body_ = nullptr;
  const void* context_ = nullptr;
  std::atomic<bool> stop_{false};
  // The fork's number, whether it is closed, and how many workers have joined it; see the .cc.
  alignas(64) std::atomic<uint32_t> gate_;
  alignas(64) std::atomic<uint32_t> done_{0};  // number of joined workers that are done
  std::vector<std::thread> workers_;
};

}  // namespace heddle::kernels::cpu
