// Threads that prepare requests: parsing, chat templates, tokens, grammars. I/O threads have the
// streams of other clients to send meanwhile.
//
// Two lanes, each with its queue and its threads, so that what takes a millisecond never waits for
// what takes a second: tasks begin in the lane that they are submitted to, and a short one that
// finds itself long moves to the other. The threads of the long lane run at low priority: on a CPU
// backend the cores are the engine's, and a step waits for its slowest thread.
// Bound: requests and bytes of bodies that wait, of both lanes together. What runs counts no more.
// Thread-safety: Submit and Cancel from any thread; tasks run on the pool's own threads. Stop
// belongs to the owner.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "server/http/message.h"

namespace heddle::server {

// Something to do once. The pool holds it while it waits and runs.
class PrepareTask {
 public:
  enum class Lane : uint8_t { kShort, kLong };
  enum class Next : uint8_t { kDone, kAgainInLongLane };

  virtual ~PrepareTask() = default;

  // On a thread of `lane`. `waited_seconds`: since it was submitted, running in the short lane not
  // counted. kAgainInLongLane: only from the short lane.
  virtual Next Run(Lane lane, double waited_seconds) = 0;
};

class PreparePool {
 public:
  struct Options {
    int short_threads = 2;
    int long_threads = 2;
    size_t max_waiting = 1024;
    // Eight of the longest bodies that a server takes unless told otherwise. Where nothing else
    // waits, a longer one may.
    size_t max_waiting_bytes = size_t{64} << 20;
  };

  explicit PreparePool(const Options& options);
  ~PreparePool();  // Stop()
  PreparePool(const PreparePool&) = delete;
  PreparePool& operator=(const PreparePool&) = delete;

  // RESOURCE_EXHAUSTED, with the time after which to come again (retry_after.h): too many wait.
  // UNAVAILABLE: the pool has stopped.
  absl::Status Submit(PrepareTask::Lane lane, std::shared_ptr<PrepareTask> task, size_t bytes);

  // Lets go of the task if it waits still; otherwise nothing changes, and it runs to its end.
  void Cancel(const PrepareTask* task);

  size_t waiting() const;

  // Drops what waits, and returns when what runs has ended: a second or two at the worst.
  // Idempotent.
  void Stop();

 private:
  struct Entry {
    std::shared_ptr<PrepareTask> task;
    size_t bytes = 0;
    Clock::time_point since;
    double waited_seconds = 0;  // before `since`
  };
  struct Queue {
    std::deque<Entry> entries;
    std::condition_variable posted;
    double last_waited_seconds = 0;  // of the one that began last
  };

  Queue& QueueOf(PrepareTask::Lane lane) {
    return lane == PrepareTask::Lane::kShort ? short_ : long_;
  }
  void RunThread(PrepareTask::Lane lane);
  bool Take(PrepareTask::Lane lane, Entry* entry);
  void MoveToLongLane(Entry entry);

  const Options options_;
  std::vector<std::thread> threads_;  // the owner's
  mutable std::mutex mutex_;
  // GUARDED_BY(mutex_), all of the following.
  Queue short_;
  Queue long_;
  size_t waiting_bytes_ = 0;
  bool stopping_ = false;
};

}  // namespace heddle::server
