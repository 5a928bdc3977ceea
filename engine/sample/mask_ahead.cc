#include "engine/sample/mask_ahead.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace heddle::engine {
namespace {

// Searches that take long leave the cores to steps.
constexpr int kLaterNice = 10;

}  // namespace

MaskAhead::~MaskAhead() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  posted_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::shared_ptr<MaskAhead::Search> MaskAhead::Find(grammar::Matcher matcher,
                                                   std::vector<TokenId> tokens) {
  auto search = std::make_shared<Search>(std::move(matcher), std::move(tokens));
  {
    std::lock_guard lock(mutex_);
    first_.push_back(search);
    if (threads_.empty()) {
      threads_.emplace_back([this] { Run(/*is_first=*/true); });
      threads_.emplace_back([this] { Run(/*is_first=*/false); });
    }
  }
  posted_.notify_all();
  return search;
}

bool MaskAhead::IsOver(const Search& search, std::chrono::steady_clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  return over_.wait_until(lock, deadline, [&search] { return search.is_over_; });
}

void MaskAhead::Drop(Search* search) {
  std::lock_guard lock(mutex_);
  search->is_unwanted_ = true;
}

// A part of the search; whether that was the last.
bool MaskAhead::Search::Go(int64_t max_items, grammar::Matcher::IfBusy if_busy) {
  while (!tokens_.empty()) {
    const absl::StatusOr<bool> taken = matcher_.AcceptWithin(tokens_.front(), max_items, if_busy);
    if (taken.ok() && !*taken) return false;
    if (!taken.ok()) {
      mask_ = taken.status();
      return true;
    }
    tokens_.erase(tokens_.begin());
  }
  Mask found = matcher_.Find(max_items, if_busy);
  if (found.ok() && *found == nullptr) return false;
  mask_ = std::move(found);
  return true;
}

// The one with the shortest slice, of these the one that has waited longest.
// REQUIRES: mutex_ is held, and the queue is not empty.
std::shared_ptr<MaskAhead::Search> MaskAhead::Next(Queue* queue) {
  const auto next =
      std::min_element(queue->begin(), queue->end(),
                       [](const auto& a, const auto& b) { return a->slice_ < b->slice_; });
  std::shared_ptr<Search> search = std::move(*next);
  queue->erase(next);
  return search;
}

void MaskAhead::Run(bool is_first) {
  pthread_setname_np(pthread_self(), is_first ? "masks" : "masks-later");
  // Linux has priorities of threads by this call; where it fails the thread runs like any other.
  if (!is_first) {
    static_cast<void>(setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kLaterNice));
  }
  Queue& queue = is_first ? first_ : later_;
  std::unique_lock lock(mutex_);
  while (true) {
    posted_.wait(lock, [this, &queue] { return stop_ || !queue.empty(); });
    if (stop_) return;
    std::shared_ptr<Search> search = Next(&queue);
    if (search->is_unwanted_) continue;
    const int64_t slice = search->slice_;
    lock.unlock();
    // A slow search of the same grammar may hold it for longer than a first slice.
    const bool is_over = search->Go(
        slice, is_first ? grammar::Matcher::IfBusy::kLater : grammar::Matcher::IfBusy::kWait);
    lock.lock();
    if (is_over) {
      search->is_over_ = true;
      over_.notify_all();
      continue;
    }
    search->slice_ = 2 * slice;
    later_.push_back(std::move(search));
    if (is_first) posted_.notify_all();
  }
}

}  // namespace heddle::engine
