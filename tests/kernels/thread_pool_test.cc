#include "kernels/cpu/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

#include "catch2/catch.hpp"

namespace heddle::kernels::cpu {
namespace {

TEST_CASE("Every item is computed exactly once, whatever the sizes", "[kernels][unit]") {
  for (int32_t threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads, /*pin=*/false);
    for (int64_t n : {0, 1, 2, 7, 8, 9, 1000}) {
      std::vector<int> hits(static_cast<size_t>(n));
      pool.ForRange(n, 1e6, [&](int64_t begin, int64_t end, int32_t) {
        for (int64_t i = begin; i < end; ++i) ++hits[static_cast<size_t>(i)];
      });
      pool.ForEach(n, 1e6, [&](int64_t i, int32_t) { ++hits[static_cast<size_t>(i)]; });
      CHECK(std::all_of(hits.begin(), hits.end(), [](int h) { return h == 2; }));
    }
  }
}

TEST_CASE("What every thread has to do is done by each once", "[kernels][unit]") {
  ThreadPool pool(4, /*pin=*/true);
  std::vector<std::thread::id> ids(4);
  std::vector<int> calls(4);
  pool.OnEveryThread([&](int32_t thread) {
    ++calls[static_cast<size_t>(thread)];
    ids[static_cast<size_t>(thread)] = std::this_thread::get_id();
  });
  CHECK(calls == std::vector<int>(4, 1));
  CHECK(ids[0] == std::this_thread::get_id());
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < i; ++j) CHECK(ids[i] != ids[j]);
  }
}

TEST_CASE("A thread that is held up leaves the rest of its part to the others", "[kernels][unit]") {
  ThreadPool pool(2, /*pin=*/false);
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> done_by_caller{0};
    std::atomic<int> taken_by_worker{0};
    pool.ForEach(100, 1e6, [&](int64_t, int32_t thread) {
      if (thread == 0) {
        ++done_by_caller;
        return;
      }
      // Its first item takes until all others are done.
      ++taken_by_worker;
      while (done_by_caller.load() < 99) std::this_thread::yield();
    });
    CHECK(taken_by_worker.load() <= 1);
    CHECK(done_by_caller.load() + taken_by_worker.load() == 100);
  }
}

TEST_CASE("Work that is too small for a fork stays on the caller", "[kernels][unit]") {
  ThreadPool pool(4, /*pin=*/false);
  int calls = 0;
  pool.ForRange(10, 1.0, [&](int64_t begin, int64_t end, int32_t thread) {
    ++calls;
    CHECK(begin == 0);
    CHECK(end == 10);
    CHECK(thread == 0);
  });
  CHECK(calls == 1);
}

TEST_CASE("Results of one fork are visible to the next, over many forks", "[kernels][unit]") {
  ThreadPool pool(3, /*pin=*/false);
  std::vector<int64_t> values(3, 1);
  for (int round = 0; round < 5000; ++round) {
    std::vector<int64_t> before = values;
    pool.ForRange(3, 1e6, [&](int64_t begin, int64_t, int32_t) {
      values[static_cast<size_t>(begin)] = before[static_cast<size_t>((begin + 1) % 3)] + 1;
    });
  }
  CHECK(values == std::vector<int64_t>(3, 5001));
}

TEST_CASE("Threads that fell asleep are woken", "[kernels][unit]") {
  ThreadPool pool(2, /*pin=*/false);
  for (int round = 0; round < 3; ++round) {
    std::atomic<bool> other_ran{false};
    pool.OnEveryThread([&](int32_t thread) {
      if (thread == 1) {
        other_ran.store(true);
        return;
      }
      // The caller's part outlasts the spinning of the other thread by far.
      auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(3);
      while (std::chrono::steady_clock::now() < end) {
      }
    });
    CHECK(other_ran.load());
    auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(3);
    while (std::chrono::steady_clock::now() < end) {
    }
  }
}

}  // namespace
}  // namespace heddle::kernels::cpu
