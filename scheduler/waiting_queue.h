// Sequences that wait for a place in the batch: new requests, and those that were preempted.
//
// They stand in flows. The flow that was served least comes first (virtual token counters: what a
// flow is charged is what it was given), and within a flow the most urgent sequence. Policies that
// know no tenants put all into one flow. kOverdue is a flow of its own, ahead of all others.
// Beside that order all sequences are linked by how long they have waited here.
//
// A flow that has nothing to do gathers no credit: when it comes back, its counter is lifted to the
// smallest of those that are busy. Flows are never forgotten: their number is that of tenants.
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

  // The flow of a tenant, made when it is asked for first.
  int32_t FlowOf(uint64_t tenant);

  // A request of `flow` has come to life, or ended.
  void Enter(int32_t flow);
  void Leave(int32_t flow);

  // `flow` was given so much, in tokens.
  void Charge(int32_t flow, int64_t tokens) { flows_[flow].served += tokens; }
  int64_t served(int32_t flow) const { return flows_[flow].served; }

  // The sequence's request names its flow. It waits from `now_us` on (or from when the one before
  // it came, if that is later).
  void Insert(Sequence* sequence, int64_t now_us);
  void Erase(Sequence* sequence);
  // Another branch of the same request takes its place and its time.
  void Replace(Sequence* sequence, Sequence* heir);

  // Between Detach and Attach the keys and the flow of its request may change; it keeps its time.
  void Detach(Sequence* sequence) { flows_[FlowIndex(*sequence)].waiting.erase(sequence); }
  void Attach(Sequence* sequence) { flows_[FlowIndex(*sequence)].waiting.insert(sequence); }

  // The next sequence that has waited since `since_us` or longer and was not given out before, or
  // null. Every sequence comes once each time that it is inserted. O(1).
  Sequence* TakeAged(int64_t since_us);

  bool empty() const { return oldest_ == nullptr; }
  // That which has waited longest; the next ones through Sequence::waits_before.
  Sequence* oldest() const { return oldest_; }

  // A walk in the order of service. Next is the first sequence that was not skipped since
  // BeginWalk, or null. Insert, Erase (of all but skipped ones) and Charge may come in between.
  // O(flows + log n) each.
  void BeginWalk();
  Sequence* Next() const;
  void Skip(Sequence* sequence) { flows_[FlowIndex(*sequence)].skipped = sequence; }

 private:
  struct Flow {
    int64_t served = 0;
    int32_t live_requests = 0;
    absl::btree_set<Sequence*, MoreUrgent> waiting;
    Sequence* skipped = nullptr;  // it and all before it
  };

  static int32_t FlowIndex(const Sequence& sequence) {
    return sequence.request->overdue ? kOverdue : sequence.request->flow;
  }

  // Where the list of ages holds the sequences on either side.
  Sequence*& LinkFrom(Sequence* before) { return before ? before->waits_before : oldest_; }
  Sequence*& LinkBack(Sequence* after) { return after ? after->waits_after : newest_; }

  std::vector<Flow> flows_;
  absl::flat_hash_map<uint64_t, int32_t> flow_of_tenant_;
  int64_t served_last_ = 0;  // by the flow that became idle last
  Sequence* oldest_ = nullptr;
  Sequence* newest_ = nullptr;
  Sequence* young_ = nullptr;  // the oldest that TakeAged has not given out; null: none
};

}  // namespace heddle::scheduler
