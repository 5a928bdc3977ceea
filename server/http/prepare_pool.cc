#include "server/http/prepare_pool.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/retry_after.h"

namespace heddle::server {
namespace {

using Lane = PrepareTask::Lane;

// A tenth of a core that the engine computes on, and all of one that is free: Linux gives a thread
// of nice n a share in proportion to 1.25 ^ -n.
constexpr int kLongNice = 10;

double SecondsSince(Clock::time_point time) {
  return std::chrono::duration<double>(Clock::now() - time).count();
}

}  // namespace

PreparePool::PreparePool(const Options& options) : options_(options) {
  for (int i = 0; i < std::max(1, options.short_threads); ++i) {
    threads_.emplace_back([this] { RunThread(Lane::kShort); });
  }
  for (int i = 0; i < std::max(1, options.long_threads); ++i) {
    threads_.emplace_back([this] { RunThread(Lane::kLong); });
  }
}

PreparePool::~PreparePool() { Stop(); }

absl::Status PreparePool::Submit(Lane lane, std::shared_ptr<PrepareTask> task, size_t bytes) {
  Queue& queue = QueueOf(lane);
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return absl::UnavailableError("the server is shutting down");
    const size_t waiting = short_.entries.size() + long_.entries.size();
    absl::Status full;
    if (waiting >= options_.max_waiting) {
      full = absl::ResourceExhaustedError(
          absl::StrCat("The queue is full: ", waiting,
                       " requests wait to be read and the limit is ", options_.max_waiting, "."));
    } else if (waiting > 0 && waiting_bytes_ + bytes > options_.max_waiting_bytes) {
      full = absl::ResourceExhaustedError(absl::StrCat(
          "The queue is full: with this request ", waiting_bytes_ + bytes,
          " bytes would wait to be read and the limit is ", options_.max_waiting_bytes, "."));
    }
    // In the time that the one that began last had to wait, the present queue has its turn.
    if (!full.ok()) return WithRetryAfter(std::move(full), queue.last_waited_seconds);
    waiting_bytes_ += bytes;
    queue.entries.push_back({std::move(task), bytes, Clock::now()});
  }
  queue.posted.notify_one();
  return absl::OkStatus();
}

void PreparePool::Cancel(const PrepareTask* task) {
  Entry cancelled;  // freed when the lock is open again
  std::lock_guard lock(mutex_);
  for (Queue* queue : {&short_, &long_}) {
    const auto found =
        std::find_if(queue->entries.begin(), queue->entries.end(),
                     [task](const Entry& entry) { return entry.task.get() == task; });
    if (found == queue->entries.end()) continue;
    waiting_bytes_ -= found->bytes;
    cancelled = std::move(*found);
    queue->entries.erase(found);
    return;
  }
}

size_t PreparePool::waiting() const {
  std::lock_guard lock(mutex_);
  return short_.entries.size() + long_.entries.size();
}

void PreparePool::Stop() {
  std::deque<Entry> dropped_short;
  std::deque<Entry> dropped_long;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    std::swap(dropped_short, short_.entries);
    std::swap(dropped_long, long_.entries);
    waiting_bytes_ = 0;
  }
  short_.posted.notify_all();
  long_.posted.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void PreparePool::RunThread(Lane lane) {
  const bool is_long = lane == Lane::kLong;
  pthread_setname_np(pthread_self(), is_long ? "prepare-long" : "prepare");
  // Linux has priorities of threads by this call; where it fails the thread runs like any other.
  if (is_long) static_cast<void>(setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kLongNice));
  Entry entry;
  while (Take(lane, &entry)) {
    const PrepareTask::Next next = entry.task->Run(lane, entry.waited_seconds);
    if (next == PrepareTask::Next::kAgainInLongLane) MoveToLongLane(std::move(entry));
    entry = Entry();
  }
}

// Waits for the next. False: the pool stops.
bool PreparePool::Take(Lane lane, Entry* entry) {
  Queue& queue = QueueOf(lane);
  std::unique_lock lock(mutex_);
  queue.posted.wait(lock, [this, &queue] { return stopping_ || !queue.entries.empty(); });
  if (stopping_) return false;
  *entry = std::move(queue.entries.front());
  queue.entries.pop_front();
  waiting_bytes_ -= entry->bytes;
  queue.last_waited_seconds = SecondsSince(entry->since);
  entry->waited_seconds += queue.last_waited_seconds;
  return true;
}

// It was let in once: no bound stops it here.
void PreparePool::MoveToLongLane(Entry entry) {
  entry.since = Clock::now();
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return;
    waiting_bytes_ += entry.bytes;
    long_.entries.push_back(std::move(entry));
  }
  long_.posted.notify_one();
}

}  // namespace heddle::server
