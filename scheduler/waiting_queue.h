// Sequences that wait for a place in the batch: those of new requests and preempted ones.
//
// They are queued in flows, one for each client if clients are told apart, and within a flow the
// most urgent sequence comes first. Which flow is next depends on the order: that of its first
// sequence, or the least served flow (virtual token counters: a flow is charged for what it was
// given). Overdue sequences go ahead of all others, except that those of flows that are late come
// behind the rest. A second list links all sequences by how long they have waited here.
//
// An idle flow gathers no credit: when it comes back, its counter is lifted to the smallest among
// the busy flows.
// Source: Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024 (VTC).
// Thread-safety: none; owned by the scheduler.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/btree_set.h"
#include "scheduler/sequence.h"

namespace heddle::scheduler {

class WaitingQueue {
 public:
  enum class Order : uint8_t { kByUrgency, kByService };

  explicit WaitingQueue(Order order) : order_(order) {}

  // Enter: a request of `flow` has begun. Leave: it has ended. Flows are numbers from 0 on; Begin
  // makes one, or gives it to somebody else.
  void Begin(int32_t flow);
  void Enter(int32_t flow);
  void Leave(int32_t flow);

  // Adds to what `flow` was given, in any unit.
  void Charge(int32_t flow, int64_t charge) { flows_[flow].served += charge; }
  int64_t served(int32_t flow) const { return flows_[flow].served; }

  // Queues a sequence in the flow that its request names. Its wait counts from `now_us` (or from
  // the wait of the previous one in the list, if that began later).
  void Insert(Sequence* sequence, int64_t now_us);
  void Erase(Sequence* sequence);
  // Puts another branch of the same request in its place, with its waiting time.
  void Replace(Sequence* sequence, Sequence* heir);

  // Between Detach and Attach the request's key and flow may change; the waiting time is kept.
  void Detach(Sequence* sequence);
  void Attach(Sequence* sequence);

  // The next sequence that has waited since `since_us` or longer and was not returned before, or
  // null. Each insertion of a sequence returns it once. O(1).
  Sequence* TakeAged(int64_t since_us);

  bool empty() const { return oldest_ == nullptr; }
  // The sequence that has waited longest; Sequence::waits_before links to the next.
  Sequence* oldest() const { return oldest_; }

  // A walk in the order of service. Next returns the first sequence that was not skipped since
  // BeginWalk, or null. Insert, Erase (except of skipped ones) and Charge are allowed in between.
  // O(flows with waiting sequences + log n) each.
  void BeginWalk();
  Sequence* Next() const;
  void Skip(Sequence* sequence) { flows_[sequence->request->flow].skipped = sequence; }
  // Skips the sequence and those of the same call that follow it directly.
  void SkipCall(Sequence* sequence);
  void SkipFlow(int32_t flow) { flows_[flow].skipped = *flows_[flow].waiting.rbegin(); }
  // In this walk the flow comes behind those that are not late.
  void SetLate(int32_t flow) { flows_[flow].is_late = true; }

  // The flows that have waiting sequences, in no order.
  std::span<const int32_t> busy() const { return busy_; }

 private:
  struct Flow {
    int64_t served = 0;
    int32_t live_requests = 0;
    absl::btree_set<Sequence*, MoreUrgent> waiting;
    Sequence* skipped = nullptr;  // the last one skipped, with all before it
    bool is_late = false;
  };

  bool GoesBefore(const Sequence& a, const Sequence& b) const;

  // The links of the list of ages on either side of a sequence.
  Sequence*& LinkFrom(Sequence* before) { return before ? before->waits_before : oldest_; }
  Sequence*& LinkBack(Sequence* after) { return after ? after->waits_after : newest_; }

  const Order order_;
  std::vector<Flow> flows_;
  std::vector<int32_t> busy_;
  int64_t served_last_ = 0;  // of the flow that became idle last
  Sequence* oldest_ = nullptr;
  Sequence* newest_ = nullptr;
  Sequence* young_ = nullptr;  // the oldest that TakeAged has not returned, or null
};

}  // namespace heddle::scheduler
