#include "server/http/prepare_pool.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/retry_after.h"

namespace heddle::server {
namespace {

using Lane = PrepareTask::Lane;

// A tenth of a core that the engine computes on, and all of a free one: Linux gives a thread of
// nice n a share proportional to 1.25 ^ -n.
constexpr int kLongNice = 10;
// Niceness of a free thread where the kernel refuses SCHED_IDLE.
constexpr int kFreeNice = 19;
// The part of a core below which a free thread has found none.
constexpr double kLeastPartOfCore = 0.05;

// Use of the pool is weighted by half after this time, and forgotten when it is nearly nothing.
constexpr double kHalfLifeSeconds = 10;
constexpr double kLeastUseSeconds = 1e-4;
constexpr size_t kMaxClients = 4096;

}  // namespace

int64_t PreparePool::ThreadCpuUs() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return int64_t{now.tv_sec} * 1'000'000 + now.tv_nsec / 1000;
}

namespace {

// On Linux these calls concern one thread; if they fail, it runs like any other.
void LowerPriority(bool to_idle) {
  const sched_param none{};
  if (to_idle && pthread_setschedparam(pthread_self(), SCHED_IDLE, &none) == 0) return;
  const int nice = to_idle ? kFreeNice : kLongNice;
  static_cast<void>(setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), nice));
}

}  // namespace

bool PrepareTurn::IsStarved() const {
  if (pace_ == nullptr) return false;
  const double seconds = SecondsBetween(begin_, pool_.options_.now());
  const double cpu_seconds = static_cast<double>(pool_.options_.thread_cpu_us() - begin_us_) * 1e-6;
  return seconds > PreparePool::kPatienceSeconds && cpu_seconds < kLeastPartOfCore * seconds;
}

void PrepareTurn::RestIfDue() const {
  if (pace_ == nullptr) return;
  const PreparePool::Options& options = pool_.options_;
  const Clock::duration rest = pace_->Rest(options.now(), options.thread_cpu_us());
  if (rest == Clock::duration::zero()) return;
  pool_.Rest(rest);
  pace_->Begin(options.now(), options.thread_cpu_us());
}

PrepareTurn::Answer PrepareTurn::Ask() const {
  RestIfDue();
  if (pool_.stopping_) return Answer::kStop;
  if (IsStarved()) return Answer::kLater;
  if (slice_end_us_ < 0) return Answer::kGoOn;
  if (lane_ == PrepareTask::Lane::kLong && pool_.num_waiting_long_ == 0) return Answer::kGoOn;
  return pool_.options_.thread_cpu_us() < slice_end_us_ ? Answer::kGoOn : Answer::kLater;
}

PreparePool::PreparePool(const Options& options) : options_(options) {
  std::lock_guard lock(mutex_);
  Start(Lane::kShort, std::max(1, options.short_threads), /*is_free=*/false);
  Start(Lane::kLong, std::max(1, options.long_threads), /*is_free=*/false);
  Start(Lane::kLong, options.free_threads, /*is_free=*/true);
}

void PreparePool::Start(Lane lane, int count, bool is_free) {
  if (!is_free) QueueOf(lane).num_threads = count;
  for (int i = 0; i < count; ++i) {
    const Thread thread{.lane = lane, .is_free = is_free};
    states_.push_back(thread);
    threads_.emplace_back([this, thread, index = states_.size() - 1] { RunThread(thread, index); });
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
    // The suggested delay is the time for which the most recently started request had to wait.
    if (!full.ok()) return WithRetryAfter(std::move(full), queue.last_waited_seconds);
    queue.entries.push_back({std::move(task), bytes, options_.now()});
    waiting_bytes_ += bytes;
    num_waiting_long_ = long_.entries.size();
  }
  queue.posted.notify_all();  // not every thread may take it
  return absl::OkStatus();
}

void PreparePool::Cancel(const PrepareTask* task) {
  Entry cancelled;  // freed after the lock is released
  std::lock_guard lock(mutex_);
  for (Queue* queue : {&short_, &long_}) {
    const auto found =
        std::find_if(queue->entries.begin(), queue->entries.end(),
                     [task](const Entry& entry) { return entry.task.get() == task; });
    if (found == queue->entries.end()) continue;
    waiting_bytes_ -= found->bytes;
    cancelled = std::move(*found);
    queue->entries.erase(found);
    num_waiting_long_ = long_.entries.size();
    return;
  }
}

size_t PreparePool::waiting() const {
  std::lock_guard lock(mutex_);
  return short_.entries.size() + long_.entries.size();
}

PreparePool::Figures PreparePool::figures() const {
  std::lock_guard lock(mutex_);
  Figures figures{.waiting = short_.entries.size() + long_.entries.size(),
                  .stuck_threads = NumStuck(Lane::kShort) + NumStuck(Lane::kLong)};
  for (const Thread& thread : states_) figures.busy_threads += thread.is_busy ? 1 : 0;
  return figures;
}

// REQUIRES: mutex_ is held.
int PreparePool::NumStuck(Lane lane) const {
  const Clock::time_point now = options_.now();
  return static_cast<int>(std::count_if(states_.begin(), states_.end(), [&](const Thread& thread) {
    return thread.lane == lane && !thread.is_free && thread.is_busy &&
           now - thread.since > options_.stuck_after;
  }));
}

absl::Status PreparePool::Check() const {
  std::lock_guard lock(mutex_);
  for (const Lane lane : {Lane::kShort, Lane::kLong}) {
    const Queue& queue = lane == Lane::kShort ? short_ : long_;
    if (NumStuck(lane) < queue.num_threads) continue;
    return absl::UnavailableError(absl::StrCat(
        "requests cannot be read: all ", queue.num_threads, " threads for ",
        lane == Lane::kShort ? "small" : "large",
        " ones have been at work on one each for more than ",
        std::chrono::duration_cast<std::chrono::seconds>(options_.stuck_after).count(), " s"));
  }
  return absl::OkStatus();
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
  {
    std::lock_guard lock(rest_mutex_);  // whoever is about to rest has seen that, or waits already
  }
  stopped_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void PreparePool::Rest(Clock::duration duration) const {
  std::unique_lock lock(rest_mutex_);
  stopped_.wait_for(lock, duration, [this] { return stopping_.load(); });
}

void PreparePool::RunThread(Thread thread, size_t index) {
  const bool is_long = thread.lane == Lane::kLong;
  pthread_setname_np(pthread_self(), thread.is_free ? "prepare-free"
                                     : is_long      ? "prepare-long"
                                                    : "prepare");
  if (is_long) LowerPriority(/*to_idle=*/thread.is_free);
  CorePace pace;
  Entry entry;
  while (Take(thread, index, &entry)) {
    const std::shared_ptr<PrepareTask> task = entry.task;
    try {
      RunEntry(thread, thread.is_free ? &pace : nullptr, std::move(entry));
    } catch (...) {
      task->Lose();
    }
    entry = Entry();
    std::lock_guard lock(mutex_);
    states_[index].is_busy = false;
  }
}

void PreparePool::RunEntry(const Thread& thread, CorePace* pace, Entry entry) {
  const bool is_long = thread.lane == Lane::kLong;
  PrepareTurn turn(*this, thread.lane, pace, entry.waited_seconds);
  const bool is_bounded = !is_long || entry.num_turns == 0;
  if (is_bounded) turn.slice_end_us_ = turn.begin_us_ + (is_long ? kLongSliceUs : kShortSliceUs);
  const uint64_t client = entry.task->client();
  auto next = PrepareTask::Next::kDone;
  try {
    next = entry.task->Run(turn);
  } catch (...) {
    entry.task->Lose();
  }
  const double seconds = static_cast<double>(options_.thread_cpu_us() - turn.begin_us_) * 1e-6;
  const bool counts = !is_bounded && !thread.is_free;
  {
    std::lock_guard lock(mutex_);
    if (counts) --long_.num_unbounded;
    Charge(client, seconds);
  }
  if (counts) long_.posted.notify_all();  // another one may run now
  if (next != PrepareTask::Next::kAgainInLongLane) return;
  entry.is_starved = turn.IsStarved();
  if (is_long) ++entry.num_turns;
  MoveToLongLane(std::move(entry));
}

// Waits for the next entry. Returns false if the pool stops.
bool PreparePool::Take(const Thread& thread, size_t index, Entry* entry) {
  Queue& queue = QueueOf(thread.lane);
  std::unique_lock lock(mutex_);
  auto next = queue.entries.end();
  const auto may_go_on = [this, &thread, &queue, &next] {
    next = Choose(thread, &queue);
    return stopping_ || next != queue.entries.end();
  };
  while (!may_go_on()) {
    // A task that nobody may take yet is looked at again when more time has passed.
    if (queue.entries.empty()) {
      queue.posted.wait(lock);
    } else {
      queue.posted.wait_for(lock, std::chrono::milliseconds(250));
    }
  }
  if (stopping_) return false;
  *entry = std::move(*next);
  queue.entries.erase(next);
  num_waiting_long_ = long_.entries.size();
  waiting_bytes_ -= entry->bytes;
  if (thread.lane == Lane::kLong && !thread.is_free && entry->num_turns > 0) ++queue.num_unbounded;
  const Clock::time_point now = options_.now();
  queue.last_waited_seconds = SecondsBetween(entry->since, now);
  entry->waited_seconds += queue.last_waited_seconds;
  states_[index].is_busy = true;
  states_[index].since = now;
  return true;
}

// Whether a thread of the long lane may take the entry, whose client has had that use of the pool.
// REQUIRES: mutex_ is held.
bool PreparePool::MayTake(const Thread& thread, const Entry& entry, double use) const {
  if (thread.is_free) return !entry.is_starved;
  const int max_unbounded = std::max(1, long_.num_threads - 1);
  if (entry.num_turns > 0 && long_.num_unbounded >= max_unbounded) return false;
  if (options_.free_threads == 0 || use < kFloorUseSeconds) return true;
  return SecondsBetween(entry.since, options_.now()) > kPatienceSeconds * use / kFloorUseSeconds;
}

// The entry whose turn it is; end() if there is none for the thread. REQUIRES: mutex_ is held.
std::deque<PreparePool::Entry>::iterator PreparePool::Choose(const Thread& thread, Queue* queue) {
  auto best = queue->entries.end();
  double least = 0;
  for (auto it = queue->entries.begin(); it != queue->entries.end(); ++it) {
    const double use = UseOf(it->task->client());
    if (thread.lane == Lane::kLong && !MayTake(thread, *it, use)) continue;
    if (best != queue->entries.end() &&
        (use > least || (use == least && it->num_turns >= best->num_turns))) {
      continue;
    }
    best = it;
    least = use;
  }
  return best;
}

// REQUIRES: mutex_ is held.
double PreparePool::UseOf(uint64_t client) const {
  auto known = use_.find(client);
  if (known == use_.end()) return 0;
  const double age = SecondsBetween(known->second.at, options_.now());
  const double use = known->second.seconds * std::exp2(-age / kHalfLifeSeconds);
  return use < kLeastUseSeconds ? 0 : use;
}

// REQUIRES: mutex_ is held.
void PreparePool::Charge(uint64_t client, double seconds) {
  const double use = UseOf(client) + seconds;
  if (use_.size() >= kMaxClients && !use_.contains(client)) {
    absl::erase_if(use_, [this](const auto& entry) { return UseOf(entry.first) == 0; });
    if (use_.size() >= kMaxClients) return;
  }
  use_[client] = {use, options_.now()};
}

// It was admitted before, so no limit applies here.
void PreparePool::MoveToLongLane(Entry entry) {
  entry.since = options_.now();
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return;
    const size_t bytes = entry.bytes;
    long_.entries.push_back(std::move(entry));
    waiting_bytes_ += bytes;
    num_waiting_long_ = long_.entries.size();
  }
  long_.posted.notify_all();
}

}  // namespace heddle::server
