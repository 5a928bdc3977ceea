#include "scheduler/waiting_queue.h"

#include <algorithm>
#include <utility>

namespace heddle::scheduler {

int32_t WaitingQueue::FlowOf(uint64_t tenant) {
  auto [it, is_new] = flow_of_tenant_.emplace(tenant, static_cast<int32_t>(flows_.size()));
  if (is_new) flows_.emplace_back();
  return it->second;
}

void WaitingQueue::Enter(int32_t flow) {
  if (flows_[flow].live_requests++ > 0) return;
  bool found = false;
  int64_t least = 0;
  for (size_t i = 0; i < flows_.size(); ++i) {
    const Flow& other = flows_[i];
    if (static_cast<int32_t>(i) == flow || other.live_requests == 0) continue;
    least = found ? std::min(least, other.served) : other.served;
    found = true;
  }
  flows_[flow].served = std::max(flows_[flow].served, found ? least : served_last_);
}

void WaitingQueue::Leave(int32_t flow) {
  if (--flows_[flow].live_requests == 0) served_last_ = flows_[flow].served;
}

void WaitingQueue::Insert(Sequence* sequence, int64_t now_us) {
  Attach(sequence);
  sequence->waiting_since_us = newest_ ? std::max(now_us, newest_->waiting_since_us) : now_us;
  sequence->waits_after = newest_;
  sequence->waits_before = nullptr;
  LinkFrom(newest_) = sequence;
  newest_ = sequence;
  if (young_ == nullptr) young_ = sequence;
}

void WaitingQueue::Erase(Sequence* sequence) {
  Detach(sequence);
  if (young_ == sequence) young_ = sequence->waits_before;
  LinkFrom(sequence->waits_after) = sequence->waits_before;
  LinkBack(sequence->waits_before) = sequence->waits_after;
  sequence->waits_after = sequence->waits_before = nullptr;
}

void WaitingQueue::Replace(Sequence* sequence, Sequence* heir) {
  Detach(sequence);
  Attach(heir);
  if (young_ == sequence) young_ = heir;
  heir->waiting_since_us = sequence->waiting_since_us;
  heir->waits_after = std::exchange(sequence->waits_after, nullptr);
  heir->waits_before = std::exchange(sequence->waits_before, nullptr);
  LinkFrom(heir->waits_after) = heir;
  LinkBack(heir->waits_before) = heir;
}

Sequence* WaitingQueue::TakeAged(int64_t since_us) {
  if (young_ == nullptr || young_->waiting_since_us > since_us) return nullptr;
  return std::exchange(young_, young_->waits_before);
}

void WaitingQueue::BeginWalk() {
  for (Flow& flow : flows_) flow.skipped = nullptr;
}

Sequence* WaitingQueue::Next() const {
  Sequence* best = nullptr;
  int64_t best_served = 0;
  for (const Flow& flow : flows_) {
    auto it = flow.skipped ? flow.waiting.upper_bound(flow.skipped) : flow.waiting.begin();
    if (it == flow.waiting.end()) continue;
    if (&flow == &flows_[kOverdue]) return *it;
    if (best != nullptr && flow.served >= best_served) continue;
    best = *it;
    best_served = flow.served;
  }
  return best;
}

}  // namespace heddle::scheduler
