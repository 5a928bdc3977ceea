// Sequences that wait for a place in the batch: those of new requests and preempted ones.
//
// They are queued in flows. The least served flow comes first (virtual token counters: a flow is
// charged for what it was given), and within a flow the most urgent sequence. Policies without
// tenants put all sequences into one flow. kOverdue is a separate flow ahead of all others. A
// second list links all sequences by how long they have waited here.
//
// An idle flow gathers no credit: when it comes back, its counter is lifted to the smallest among
// the busy flows. Flows are never forgotten: there are as many as tenants.
// Source: Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024 (VTC).
// Thread-safety: none; owned by the scheduler.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "scheduler/sequence.h"

namespace heddle::scheduler {

class WaitingQueue {
 public:
  static constexpr int32_t kOverdue = 0;

  WaitingQueue() : flows_(1) {}

  // The flow of a tenant; it is made at the first call.
  int32_t FlowOf(uint64_t tenant);

  // Enter: a request of `flow` has begun. Leave: it has ended.
  void Enter(int32_t flow);
  void Leave(int32_t flow);

  // Adds `tokens` to what `flow` was given.
  void Charge(int32_t flow, int64_t tokens) { flows_[flow].served += tokens; }
  int64_t served(int32_t flow) const { return flows_[flow].served; }

  // Queues a sequence in the flow that its request names. Its wait counts from `now_us` (or from
  // the wait of the previous one in the list, if that began later).
  void Insert(Sequence* sequence, int64_t now_us);
  void Erase(Sequence* sequence);
  // Puts another branch of the same request in its place, with its waiting time.
  void Replace(Sequence* sequence, Sequence* heir);

  // Between Detach and Attach the request's key and flow may change; the waiting time is kept.
  void Detach(Sequence* sequence) { flows_[FlowIndex(*sequence)].waiting.erase(sequence); }
  void Attach(Sequence* sequence) { flows_[FlowIndex(*sequence)].waiting.insert(sequence); }

  // The next sequence that has waited since `since_us` or longer and was not returned before, or
  // null. Each insertion of a sequence returns it once. O(1).
  Sequence* TakeAged(int64_t since_us);

  bool empty() const { return oldest_ == nullptr; }
  // The sequence that has waited longest; Sequence::waits_before links to the next.
  Sequence* oldest() const { return oldest_; }

  // A walk in the order of service. Next returns the first sequence that was not skipped since
  // BeginWalk, or null. Insert, Erase (except of skipped ones) and Charge are allowed in between.
  // O(flows + log n) each.
  void BeginWalk();
  Sequence* Next() const;
  void Skip(Sequence* sequence) { flows_[FlowIndex(*sequence)].skipped = sequence; }

 private:
  struct Flow {
    int64_t served = 0;
    int32_t live_requests = 0;
    absl::btree_set<Sequence*, MoreUrgent> waiting;
    Sequence* skipped = nullptr;  // the last one skipped, with all before it
  };

  static int32_t FlowIndex(const Sequence& sequence) {
    return sequence.request->overdue ? kOverdue : sequence.request->flow;
  }

  // The links of the list of ages on either side of a sequence.
  Sequence*& LinkFrom(Sequence* before) { return before ? before->waits_before : oldest_; }
  Sequence*& LinkBack(Sequence* after) { return after ? after->waits_after : newest_; }

  std::vector<Flow> flows_;
  absl::flat_hash_map<uint64_t, int32_t> flow_of_tenant_;
  int64_t served_last_ = 0;  // of the flow that became idle last
  Sequence* oldest_ = nullptr;
  Sequence* newest_ = nullptr;
  Sequence* young_ = nullptr;  // the oldest that TakeAged has not returned, or null
};

}  // namespace heddle::scheduler
