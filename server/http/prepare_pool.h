// Threads that prepare requests (parsing, chat templates, tokens, grammars), because I/O threads
// have to serve other clients' streams meanwhile.
//
// There are two lanes, each with its queue and its threads, so that a task of a millisecond never
// waits for one of a second: tasks begin in the lane to which they are submitted, and a short one
// that turns out to be long moves to the other. The threads of the long lane run at low priority:
// on a CPU backend the cores belong to the engine, and a step waits for its slowest thread. Some of
// them are free threads, which get only what nobody else wants of the cores (SCHED_IDLE), and rest
// where others want them (core_pace.h). What a client asks for beyond kFloorUseSeconds runs on
// those; so heavy requests of one client queue behind its own, and cost the engine next to nothing.
// A task that finds no free core for kPatienceSeconds or longer, in proportion to the client's use,
// comes back to the other threads.
//
// Turns. The next task in a lane is that of the client for which the pool has worked least lately;
// among those, the one that has had fewer turns, then the one that came first. Long tasks ask
// regularly whether their turn is over. In the short lane a task has kShortSlice, and then moves
// over. In the long lane it has kLongSlice while others wait; then it starts again from the end of
// the queue, without a limit. At most all but one of the lane's threads run such unlimited tasks
// (if it has two). So a small request waits for slices, and never for a whole large one.
// Bound: waiting requests and bytes of their bodies, over both lanes. Running ones do not count.
// Thread-safety: Submit, Cancel and Check may be called from any thread; tasks run on the pool's
// own threads. The owner calls Stop.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "server/http/core_pace.h"
#include "server/http/http_message.h"

namespace heddle::server {

class PrepareTurn;

// A task that runs once. The pool holds it while it waits and runs.
class PrepareTask {
 public:
  enum class Lane : uint8_t { kShort, kLong };
  enum class Next : uint8_t { kDone, kAgainInLongLane };

  virtual ~PrepareTask() = default;

  // Called on a thread of the turn's lane. Returns kAgainInLongLane only from the short lane, or
  // after the turn has said kLater.
  virtual Next Run(const PrepareTurn& turn) = 0;

  // The client whose task it is: clients take turns. 0: clients of this kind are not distinguished.
  virtual uint64_t client() const { return 0; }

  // Called on a thread of the pool: out of memory, and the task will not complete.
  virtual void Lose() noexcept = 0;
};

class PreparePool {
 public:
  struct Options {
    int short_threads = 2;
    int long_threads = 2;
    int free_threads = 0;  // of the long lane, beside those
    size_t max_waiting = 1024;
    // Eight of the longest bodies that a server takes by default. A longer one may wait if nothing
    // else does.
    size_t max_waiting_bytes = size_t{64} << 20;
    // Far longer than any task takes, with budgets of seconds on threads of low priority.
    Clock::duration stuck_after = std::chrono::seconds(60);
    // Clocks: the time, and the calling thread's CPU time.
    std::function<Clock::time_point()> now = Clock::now;
    std::function<int64_t()> thread_cpu_us = ThreadCpuUs;
  };
  static int64_t ThreadCpuUs();

  static constexpr int64_t kShortSliceUs = 3'000;
  static constexpr int64_t kLongSliceUs = 20'000;

  // A client's use of the pool, which halves every ten seconds, up to which it counts as light: a
  // dozen slices.
  static constexpr double kFloorUseSeconds = 0.25;
  // How long a request of a client with that use waits for a free core before it gets a tenth of a
  // busy one; with twice the use, twice as long.
  static constexpr double kPatienceSeconds = 2;

  struct Figures {
    size_t waiting = 0;
    int busy_threads = 0;
    int stuck_threads = 0;
  };

  explicit PreparePool(const Options& options);
  ~PreparePool();  // Stop()
  PreparePool(const PreparePool&) = delete;
  PreparePool& operator=(const PreparePool&) = delete;

  // RESOURCE_EXHAUSTED, with the time after which to retry (retry_after.h): too many wait.
  // UNAVAILABLE: the pool has stopped.
  absl::Status Submit(PrepareTask::Lane lane, std::shared_ptr<PrepareTask> task, size_t bytes);

  // Drops the task if it still waits; otherwise nothing changes, and the task itself has to find
  // out that nobody waits for it.
  void Cancel(const PrepareTask* task);

  size_t waiting() const;
  Figures figures() const;

  // UNAVAILABLE, with the reason, if no thread of a lane has finished its task for
  // Options::stuck_after, so that new tasks would wait in vain.
  absl::Status Check() const;

  // Drops waiting tasks, tells running ones to stop, and returns when they have: a task that asks
  // for its turn does so within a millisecond. Idempotent.
  void Stop();

 private:
  friend class PrepareTurn;

  struct Entry {
    std::shared_ptr<PrepareTask> task;
    size_t bytes = 0;
    Clock::time_point since;
    double waited_seconds = 0;  // before `since`
    int num_turns = 0;          // turns in the long lane that were cut short
    bool is_starved = false;    // found no free core; free threads leave it to the others
  };
  struct Queue {
    std::deque<Entry> entries;
    std::condition_variable posted;
    double last_waited_seconds = 0;  // wait of the entry that began last
    int num_unbounded = 0;           // running ones without a slice, except on free threads
    int num_threads = 0;             // without free threads
  };
  struct Thread {
    PrepareTask::Lane lane;
    bool is_free = false;
    bool is_busy = false;
    Clock::time_point since;  // when its task began
  };
  struct Use {
    double seconds = 0;
    Clock::time_point at;
  };

  Queue& QueueOf(PrepareTask::Lane lane) {
    return lane == PrepareTask::Lane::kShort ? short_ : long_;
  }
  void Start(PrepareTask::Lane lane, int count, bool is_free);
  void RunThread(Thread thread, size_t index);
  bool Take(const Thread& thread, size_t index, Entry* entry);
  std::deque<Entry>::iterator Choose(const Thread& thread, Queue* queue);
  bool MayTake(const Thread& thread, const Entry& entry, double use) const;
  void RunEntry(const Thread& thread, CorePace* pace, Entry entry);
  void Rest(Clock::duration duration) const;
  void MoveToLongLane(Entry entry);
  double UseOf(uint64_t client) const;
  void Charge(uint64_t client, double seconds);
  int NumStuck(PrepareTask::Lane lane) const;

  const Options options_;
  std::vector<std::thread> threads_;  // used by the owner only
  std::atomic<bool> stopping_ = false;
  std::atomic<size_t> num_waiting_long_ = 0;  // equals the size of long_.entries
  // Guards the threads that rest. It is not mutex_, since they may lose their core while they hold
  // it.
  mutable std::mutex rest_mutex_;
  mutable std::condition_variable stopped_;
  mutable std::mutex mutex_;
  // All of the following are GUARDED_BY(mutex_).
  Queue short_;
  Queue long_;
  std::vector<Thread> states_;  // of threads_
  absl::flat_hash_map<uint64_t, Use> use_;
  size_t waiting_bytes_ = 0;
};

// A running task's view of its turn.
// Thread-safety: none; used on the task's thread while it runs.
class PrepareTurn {
 public:
  enum class Answer : uint8_t {
    kGoOn,
    kLater,  // the slice is over: the task has to return kAgainInLongLane
    kStop,   // the pool stops: the result will not be used
  };

  PrepareTask::Lane lane() const { return lane_; }
  // The time since it was submitted, without that of earlier runs.
  double waited_seconds() const { return waited_seconds_; }
  // Blocks on a free thread while that has to rest, for as long as CorePace says.
  Answer Ask() const;

 private:
  friend class PreparePool;
  // `pace`: of a free thread; null on others.
  PrepareTurn(const PreparePool& pool, PrepareTask::Lane lane, CorePace* pace,
              double waited_seconds)
      : pool_(pool),
        lane_(lane),
        pace_(pace),
        waited_seconds_(waited_seconds),
        begin_us_(pool.options_.thread_cpu_us()),
        begin_(pool.options_.now()) {
    if (pace != nullptr) pace->Begin(begin_, begin_us_);
  }

  // Whether the thread has hardly got any time from the cores for as long as the pool's patience.
  bool IsStarved() const;
  void RestIfDue() const;

  const PreparePool& pool_;
  const PrepareTask::Lane lane_;
  CorePace* const pace_;  // of a free thread; null on others
  const double waited_seconds_;
  const int64_t begin_us_;  // the thread's CPU time
  const Clock::time_point begin_;
  int64_t slice_end_us_ = -1;  // the thread's CPU time at the slice's end; negative: no limit
};

}  // namespace heddle::server
