#include "scheduler/waiting_queue.h"

#include <algorithm>
#include <utility>

namespace heddle::scheduler {

void WaitingQueue::Begin(int32_t flow) {
  if (flow >= static_cast<int32_t>(flows_.size())) flows_.resize(static_cast<size_t>(flow) + 1);
  flows_[flow].served = 0;
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

void WaitingQueue::Attach(Sequence* sequence) {
  const int32_t flow = sequence->request->flow;
  if (flows_[flow].waiting.empty()) {
    busy_.push_back(flow);
    flows_[flow].skipped = nullptr;
    flows_[flow].is_late = false;
  }
  flows_[flow].waiting.insert(sequence);
}

void WaitingQueue::Detach(Sequence* sequence) {
  const int32_t flow = sequence->request->flow;
  flows_[flow].waiting.erase(sequence);
  if (flows_[flow].waiting.empty()) std::erase(busy_, flow);
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
  for (const int32_t flow : busy_) {
    flows_[flow].skipped = nullptr;
    flows_[flow].is_late = false;
  }
}

void WaitingQueue::SkipCall(Sequence* sequence) {
  Flow& flow = flows_[sequence->request->flow];
  const uint64_t call = CallOf(sequence->request->request);
  for (auto it = flow.waiting.find(sequence);
       it != flow.waiting.end() && CallOf((*it)->request->request) == call; ++it) {
    flow.skipped = *it;
  }
}

// Whether `a`, the first of its flow, goes before `b`, the first of another.
bool WaitingQueue::GoesBefore(const Sequence& a, const Sequence& b) const {
  const Flow& flow_a = flows_[a.request->flow];
  const Flow& flow_b = flows_[b.request->flow];
  if (flow_a.is_late != flow_b.is_late) return flow_b.is_late;
  if (a.request->overdue != b.request->overdue) return a.request->overdue;
  const bool by_service = order_ == Order::kByService && !a.request->overdue;
  if (by_service && flow_a.served != flow_b.served) return flow_a.served < flow_b.served;
  return MoreUrgent()(&a, &b);
}

Sequence* WaitingQueue::Next() const {
  Sequence* best = nullptr;
  for (const int32_t number : busy_) {
    const Flow& flow = flows_[number];
    const auto it = flow.skipped ? flow.waiting.upper_bound(flow.skipped) : flow.waiting.begin();
    if (it == flow.waiting.end()) continue;
    if (best == nullptr || GoesBefore(**it, *best)) best = *it;
  }
  return best;
}

}  // namespace heddle::scheduler
