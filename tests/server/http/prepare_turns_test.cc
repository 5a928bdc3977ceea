// Turns in the pool that prepares requests, by a clock and a CPU time that the test sets.
#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "catch2/catch.hpp"
#include "server/http/core_pace.h"
#include "server/http/prepare_pool.h"

namespace heddle::test {
namespace {

using server::Clock;
using server::PreparePool;
using server::PrepareTask;
using server::PrepareTurn;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr auto kShort = PrepareTask::Lane::kShort;
constexpr auto kLong = PrepareTask::Lane::kLong;

// Time that all threads share, and that only tasks move.
struct Times {
  std::atomic<int64_t> cpu_us{0};
  std::atomic<int64_t> wall_seconds{0};

  PreparePool::Options Options(int long_threads = 1, int free_threads = 0) {
    return {.short_threads = 1,
            .long_threads = long_threads,
            .free_threads = free_threads,
            .now = [this] { return Clock::time_point(seconds(wall_seconds)); },
            .thread_cpu_us = [this] { return cpu_us.load(); }};
  }
};

class Task final : public PrepareTask {
 public:
  Task(uint64_t client, std::function<Next(const PrepareTurn&)> run)
      : client_(client), run_(std::move(run)) {}
  void Lose() noexcept override {}
  Next Run(const PrepareTurn& turn) override { return run_(turn); }
  uint64_t client() const override { return client_; }

 private:
  uint64_t client_;
  std::function<Next(const PrepareTurn&)> run_;
};

// Records who ran, in order.
class Journal {
 public:
  void Write(const std::string& name) {
    std::lock_guard lock(mutex_);
    text_ += name;
  }
  std::string text() const {
    std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  mutable std::mutex mutex_;
  std::string text_;
};

TEST_CASE("The client that has had least comes first, whoever waits longer", "[prepare][unit]") {
  Times times;
  Journal journal;
  PreparePool pool(times.Options());
  std::promise<void> open;
  std::promise<void> last;
  std::shared_future<void> opened = open.get_future().share();
  // Takes the thread until all others wait; its client is charged half a second.
  REQUIRE(pool.Submit(kLong,
                      std::make_shared<Task>(1,
                                             [&](const PrepareTurn&) {
                                               opened.wait();
                                               times.cpu_us += 500'000;
                                               return PrepareTask::Next::kDone;
                                             }),
                      1)
              .ok());
  const auto submit = [&](uint64_t client, const std::string& name) {
    REQUIRE(pool.Submit(kLong,
                        std::make_shared<Task>(client,
                                               [&, name](const PrepareTurn&) {
                                                 journal.Write(name);
                                                 times.cpu_us += 1000;
                                                 if (journal.text().size() == 5) last.set_value();
                                                 return PrepareTask::Next::kDone;
                                               }),
                        1)
                .ok());
  };
  submit(1, "a");
  submit(1, "b");
  submit(2, "x");
  submit(2, "y");
  submit(3, "z");
  open.set_value();
  last.get_future().wait();
  CHECK(journal.text() == "xzyab");
}

TEST_CASE("What has had its slice gives way to others, and goes on when they are done",
          "[prepare][unit]") {
  Times times;
  Journal journal;
  PreparePool pool(times.Options());
  std::promise<void> begun;
  std::promise<void> submitted;
  std::promise<void> done;
  std::shared_future<void> others = submitted.get_future().share();
  int turns = 0;
  REQUIRE(pool.Submit(kLong,
                      std::make_shared<Task>(1,
                                             [&](const PrepareTurn& turn) {
                                               if (++turns == 1) {
                                                 // Alone, a slice has no end.
                                                 times.cpu_us += 10 * PreparePool::kLongSliceUs;
                                                 CHECK(turn.Ask() == PrepareTurn::Answer::kGoOn);
                                                 begun.set_value();
                                                 others.wait();
                                                 CHECK(turn.Ask() == PrepareTurn::Answer::kLater);
                                                 journal.Write("1");
                                                 return PrepareTask::Next::kAgainInLongLane;
                                               }
                                               times.cpu_us += 1'000'000;
                                               CHECK(turn.Ask() == PrepareTurn::Answer::kGoOn);
                                               journal.Write("2");
                                               done.set_value();
                                               return PrepareTask::Next::kDone;
                                             }),
                      1)
              .ok());
  begun.get_future().wait();
  REQUIRE(pool.Submit(kLong,
                      std::make_shared<Task>(2,
                                             [&](const PrepareTurn&) {
                                               journal.Write("x");
                                               return PrepareTask::Next::kDone;
                                             }),
                      1)
              .ok());
  submitted.set_value();
  done.get_future().wait();
  CHECK(journal.text() == "1x2");
}

TEST_CASE("In the short lane a slice ends whether others wait or not", "[prepare][unit]") {
  Times times;
  PreparePool pool(times.Options());
  std::promise<PrepareTask::Lane> done;
  REQUIRE(pool.Submit(kShort,
                      std::make_shared<Task>(1,
                                             [&](const PrepareTurn& turn) {
                                               if (turn.lane() == kLong) {
                                                 done.set_value(turn.lane());
                                                 return PrepareTask::Next::kDone;
                                               }
                                               CHECK(turn.Ask() == PrepareTurn::Answer::kGoOn);
                                               times.cpu_us += PreparePool::kShortSliceUs;
                                               CHECK(turn.Ask() == PrepareTurn::Answer::kLater);
                                               return PrepareTask::Next::kAgainInLongLane;
                                             }),
                      1)
              .ok());
  CHECK(done.get_future().get() == kLong);
}

TEST_CASE("One thread of two is left to those that have a slice", "[prepare][unit]") {
  Times times;
  PreparePool pool(times.Options(/*long_threads=*/2));
  std::promise<void> open;
  std::shared_future<void> opened = open.get_future().share();
  std::promise<void> unbounded;
  std::atomic<int> num_unbounded = 0;
  std::atomic<int> most_unbounded = 0;
  std::atomic<int> num_done = 0;
  for (uint64_t client = 1; client <= 4; ++client) {
    REQUIRE(pool.Submit(kLong,
                        std::make_shared<Task>(client,
                                               [&, client, turns = 0](const PrepareTurn&) mutable {
                                                 if (++turns == 1)
                                                   return PrepareTask::Next::kAgainInLongLane;
                                                 most_unbounded = std::max(most_unbounded.load(),
                                                                           ++num_unbounded);
                                                 if (client == 1 || num_done == 0) opened.wait();
                                                 --num_unbounded;
                                                 ++num_done;
                                                 return PrepareTask::Next::kDone;
                                               }),
                        1)
                .ok());
  }
  // A newcomer finds a thread although the first of them does not end.
  std::promise<void> served;
  REQUIRE(pool.Submit(kLong,
                      std::make_shared<Task>(9,
                                             [&](const PrepareTurn&) {
                                               served.set_value();
                                               return PrepareTask::Next::kDone;
                                             }),
                      1)
              .ok());
  CHECK(served.get_future().wait_for(seconds(20)) == std::future_status::ready);
  open.set_value();
  while (num_done < 4) std::this_thread::yield();
  CHECK(most_unbounded == 1);
}

TEST_CASE("Threads that do not come to an end are told of, and stopping does not wait for slices",
          "[prepare][unit]") {
  Times times;
  std::promise<void> begun;
  std::promise<void> stopped;
  PreparePool pool(times.Options());
  CHECK(pool.Check().ok());
  REQUIRE(pool.Submit(kLong,
                      std::make_shared<Task>(1,
                                             [&](const PrepareTurn& turn) {
                                               begun.set_value();
                                               while (turn.Ask() != PrepareTurn::Answer::kStop)
                                                 std::this_thread::yield();
                                               stopped.set_value();
                                               return PrepareTask::Next::kDone;
                                             }),
                      1)
              .ok());
  begun.get_future().wait();
  CHECK(pool.Check().ok());
  CHECK(pool.figures().busy_threads == 1);
  times.wall_seconds = 61;
  CHECK(absl::IsUnavailable(pool.Check()));
  CHECK(pool.figures().stuck_threads == 1);
  pool.Stop();
  CHECK(stopped.get_future().wait_for(seconds(0)) == std::future_status::ready);
}

// The scheduling policy of the calling thread: of free threads, SCHED_IDLE where that is allowed.
int PolicyOfThread() {
  int policy = -1;
  sched_param param{};
  pthread_getschedparam(pthread_self(), &policy, &param);
  return policy;
}

bool IsFreeThread() {
  char name[16] = "";
  pthread_getname_np(pthread_self(), name, sizeof(name));
  return std::string(name) == "prepare-free";
}

TEST_CASE("What a client asks for beyond its light use runs on free cores", "[prepare][unit]") {
  Times times;
  Journal journal;
  PreparePool pool(times.Options(/*long_threads=*/1, /*free_threads=*/1));
  const auto run = [&](uint64_t client, int64_t cpu_us) {
    std::promise<void> done;
    REQUIRE(pool.Submit(kLong,
                        std::make_shared<Task>(client,
                                               [&](const PrepareTurn&) {
                                                 const bool is_free = IsFreeThread();
                                                 CHECK(is_free == (PolicyOfThread() == SCHED_IDLE));
                                                 times.cpu_us += cpu_us;
                                                 journal.Write(is_free ? "f" : "l");
                                                 done.set_value();
                                                 return PrepareTask::Next::kDone;
                                               }),
                        1)
                .ok());
    done.get_future().wait();
  };
  run(1, 600'000);  // on whichever thread comes first
  // The pool charges the client a moment after the task's end; a stranger's task waits for that.
  while (pool.figures().busy_threads > 0) std::this_thread::yield();
  for (int i = 0; i < 5; ++i) run(1, 1000);
  CHECK(journal.text().substr(1) == "fffff");
  pool.Stop();
}

Clock::time_point At(int64_t ms) { return Clock::time_point(milliseconds(ms)); }

TEST_CASE("A thread that gets most of a core does not rest", "[prepare][unit]") {
  server::CorePace pace;
  pace.Begin(At(100), 0);
  for (int i = 1; i <= 100; ++i) {
    CHECK(pace.Rest(At(100 + 6 * i), 5000 * i) == Clock::duration::zero());
  }
}

TEST_CASE("A thread whose core others want gets a tenth of it", "[prepare][unit]") {
  server::CorePace pace;
  pace.Begin(At(0), 0);
  CHECK(pace.Rest(At(8), 2000) == Clock::duration::zero());  // not worth a rest yet
  CHECK(pace.Rest(At(20), 5000) == milliseconds(30));        // 5 ms of 50
  pace.Begin(At(50), 5000);
  CHECK(pace.Rest(At(150), 10'000) == Clock::duration::zero());  // had less than that
  // Half a second without an interruption is not paid for by five.
  pace.Begin(At(200), 10'000);
  CHECK(pace.Rest(At(1200), 510'000) == milliseconds(250));
  // Time between two tasks is no time in which somebody had the core.
  pace.Begin(At(2000), 510'000);
  CHECK(pace.Rest(At(2005), 515'000) == Clock::duration::zero());
}

TEST_CASE("A free thread rests before it goes on, and not when the pool stops", "[prepare][unit]") {
  Times times;
  PreparePool pool(times.Options(/*long_threads=*/1, /*free_threads=*/1));
  const auto ask = [&](std::promise<PrepareTurn::Answer>* answer, std::promise<void>* begun) {
    auto run = [&times, answer, begun](const PrepareTurn& turn) {
      times.cpu_us += 500'000;
      ++times.wall_seconds;
      begun->set_value();
      answer->set_value(turn.Ask());
      return PrepareTask::Next::kDone;
    };
    REQUIRE(pool.Submit(kLong, std::make_shared<Task>(1, run), 1).ok());
  };
  std::promise<PrepareTurn::Answer> first, second, third;
  std::promise<void> begun[3];
  ask(&first, &begun[0]);  // on whichever thread comes first, and its client is heavy then
  first.get_future().wait();
  while (pool.figures().busy_threads > 0) std::this_thread::yield();
  const Clock::time_point begin = Clock::now();
  ask(&second, &begun[1]);
  CHECK(second.get_future().get() == PrepareTurn::Answer::kGoOn);
  CHECK(Clock::now() - begin >= milliseconds(250));
  ask(&third, &begun[2]);
  begun[2].get_future().wait();
  pool.Stop();
  CHECK(third.get_future().get() == PrepareTurn::Answer::kStop);
}

TEST_CASE("Who finds no free core comes back to the other threads", "[prepare][unit]") {
  Times times;
  PreparePool pool(times.Options(/*long_threads=*/1, /*free_threads=*/1));
  std::promise<void> hold, done;
  std::shared_future<void> held = hold.get_future().share();
  // The one thread that is not free is at work for somebody else.
  std::promise<void> begun;
  std::atomic<bool> is_begun = false;
  const auto occupy = [&](const PrepareTurn&) {
    if (!IsFreeThread() && !is_begun.exchange(true)) {
      begun.set_value();
      held.wait();
    }
    return PrepareTask::Next::kDone;
  };
  while (!is_begun) {
    if (pool.waiting() == 0) {
      REQUIRE(pool.Submit(kLong, std::make_shared<Task>(1, occupy), 1).ok());
    }
    std::this_thread::yield();
  }
  begun.get_future().wait();
  std::atomic<int> turns = 0;
  REQUIRE(pool.Submit(kLong,
                      std::make_shared<Task>(2,
                                             [&](const PrepareTurn& turn) {
                                               if (++turns == 1) {
                                                 CHECK(IsFreeThread());
                                                 CHECK(turn.Ask() == PrepareTurn::Answer::kGoOn);
                                                 times.wall_seconds += 3;  // and no CPU time
                                                 CHECK(turn.Ask() == PrepareTurn::Answer::kLater);
                                                 hold.set_value();
                                                 return PrepareTask::Next::kAgainInLongLane;
                                               }
                                               CHECK_FALSE(IsFreeThread());
                                               CHECK(turn.Ask() == PrepareTurn::Answer::kGoOn);
                                               done.set_value();
                                               return PrepareTask::Next::kDone;
                                             }),
                      1)
              .ok());
  CHECK(done.get_future().wait_for(seconds(20)) == std::future_status::ready);
  pool.Stop();
}

TEST_CASE("The more a client has used, the longer it waits for a free core", "[prepare][unit]") {
  Times times;
  PreparePool pool(times.Options(/*long_threads=*/1, /*free_threads=*/1));
  std::promise<void> hold, done, begun;
  std::shared_future<void> held = hold.get_future().share();
  std::atomic<bool> is_begun = false;
  const auto occupy = [&](const PrepareTurn&) {
    if (IsFreeThread() && !is_begun.exchange(true)) {
      times.cpu_us += 500'000;  // client 1 is heavy, and its next task finds the free thread busy
      begun.set_value();
      held.wait();
    }
    return PrepareTask::Next::kDone;
  };
  while (!is_begun) {
    if (pool.waiting() == 0) {
      REQUIRE(pool.Submit(kLong, std::make_shared<Task>(1, occupy), 1).ok());
    }
    std::this_thread::yield();
  }
  begun.get_future().wait();
  std::atomic<bool> ran = false;
  const auto submit = [&](uint64_t client, int64_t cpu_us, std::promise<void>* end) {
    REQUIRE(pool.Submit(kLong,
                        std::make_shared<Task>(client,
                                               [&ran, &times, cpu_us, end](const PrepareTurn&) {
                                                 times.cpu_us += cpu_us;
                                                 ran = true;
                                                 end->set_value();
                                                 return PrepareTask::Next::kDone;
                                               }),
                        1)
                .ok());
  };
  std::promise<void> heavy;
  submit(2, 500'000, &heavy);  // twice the light use, on the thread that is not free
  heavy.get_future().wait();
  while (pool.figures().busy_threads > 1) std::this_thread::yield();
  ran = false;
  submit(2, 0, &done);
  times.wall_seconds += 3;
  std::promise<void> light;
  submit(3, 0, &light);  // a client that has used nothing need not wait
  light.get_future().wait();
  std::future<void> finished = done.get_future();
  CHECK(finished.wait_for(milliseconds(600)) == std::future_status::timeout);
  times.wall_seconds += 2;  // five seconds in all, and twice the use has four of patience
  CHECK(finished.wait_for(seconds(20)) == std::future_status::ready);
  hold.set_value();
  pool.Stop();
}

}  // namespace
}  // namespace heddle::test
