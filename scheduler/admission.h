// Decides who gets a place in the batch. It holds the waiting requests and the policy that orders
// them, and takes pages from running sequences for more urgent ones that wait.
//
// A request is admitted when its whole prompt fits beside what the running sequences are sure to
// need. While an overdue sequence waits for a place, no sequence that arrived later gets one unless
// it is overdue itself.
//
// Where clients are told apart (client_shares.h), one that is held gets no places, whichever the
// policy, and one that is ahead of others that wait comes behind them. Who has no place while one
// client has most of them, and is ahead, takes one from that client. The calls of
// one client give each other places and pages likewise (call_holds.h), and those that want much
// come behind the rest. Thread-safety: none; owned by the scheduler.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "scheduler/call_holds.h"
#include "scheduler/call_order.h"
#include "scheduler/cost_model.h"
#include "scheduler/planned_step.h"
#include "scheduler/policy.h"
#include "scheduler/scheduler_parts.h"
#include "scheduler/waiting_queue.h"

namespace heddle::scheduler {

class Admission {
 public:
  explicit Admission(const SchedulerParts& parts);

  // Queues the first branch of a new request.
  void Add(RequestState* request, int64_t now_us);
  // Gives waiting sequences a place in `step` while prompt rows are left in `budget`, and takes
  // places and pages from running sequences that they may displace.
  void Admit(int32_t budget, PlannedStep* step);
  // Loads up to `max_pages` pages of the adapters of those that are served next, into pages that
  // `step` leaves to spare.
  void Prefetch(int32_t max_pages, PlannedStep* step, engine::StepPlan* plan);
  // Releases the pages of a sequence that has been removed from the running set and queues it
  // again, or parks it if its request is paused.
  void Preempt(Sequence* victim, PlannedStep* step);
  // Preempts one of the running sequences behind the index-th, and removes it from their set: the
  // last one, unless another call of the same client has much. REQUIRES: there is one.
  void PreemptBehind(size_t index, PlannedStep* step);

  // The request has entered its first step, or has ended without one: it no longer counts as
  // waiting. REQUIRES: it is not paused.
  void CountStarted(const RequestState& request);
  // Books the end of a request.
  void Leave(const RequestState& request);

  // Begins and ends a pause. Meanwhile the request's flow counts it as ended, so that a flow with
  // nothing else gathers no credit, and sequences that would wait are parked.
  void Pause(RequestState* request);
  void Resume(RequestState* request, int64_t now_us);
  // Takes pages and places from paused sequences, the least urgent first, until `step` has enough
  // pages or none of them is left. REQUIRES: no step is in flight.
  void ParkForPages(PlannedStep* step);

  // Charges the request's flow for `tokens` tokens of answers, and for the pool's pages that its
  // adapter holds meanwhile.
  void ChargeAnswer(const RequestState& request, int64_t tokens);

  // A parked sequence has ended.
  void CountUnparked() { --num_parked_; }
  // Takes a waiting sequence out of the queue, or puts another branch of its request in its place.
  void Erase(Sequence* sequence) { waiting_.Erase(sequence); }
  void Replace(Sequence* sequence, Sequence* heir) { waiting_.Replace(sequence, heir); }
  // The flows that have sequences without a place, in no order.
  std::span<const int32_t> waiting_flows() const { return waiting_.busy(); }
  // The sequence that has waited longest, or null; Sequence::waits_before links to the next.
  Sequence* oldest() const { return waiting_.oldest(); }

  // Adds the adapters of waiting sequences that have to be loaded; `limit` bounds the list.
  void ListAdapters(size_t limit, AdapterLists* lists) const;
  // Live requests that have an adapter.
  int32_t num_with_adapter() const { return num_with_adapter_; }
  bool tells_clients_apart() const;
  int32_t num_parked() const { return num_parked_; }
  int32_t num_unstarted() const { return num_unstarted_; }
  // The cost of reading their prompts, with nothing found in the prefix cache.
  const StepCost& unstarted() const { return unstarted_; }
  // Requests that will join the running ones soon; 0 if the next one does not fit beside them.
  int64_t num_joining() const { return blocked_ == SequenceId{} ? num_unstarted_ : 0; }
  // INTERNAL unless those that are parked are the ones that would wait if they were not paused.
  absl::Status CheckParked() const;

 private:
  // Charges of a tenant per computed prompt token and per generated token. A generated token costs
  // more because it takes its own pass over the weights. Their ratio is that of the VTC paper
  // (waiting_queue.h); the unit leaves room for fractions.
  static constexpr int64_t kPromptCharge = 256;
  static constexpr int64_t kAnswerCharge = 512;

  int64_t LoadCharge(const AdapterUse& use) const;
  int64_t HoldCharge(const AdapterUse& use) const;

  int64_t PagesBeside(const Sequence& sequence, const PlannedStep& step) const;
  bool FitsBeside(const Sequence& sequence, const PlannedStep& step) const;
  bool MayFit(const Sequence& sequence, const PlannedStep& step) const;
  bool TakesCached(Sequence* next, const PlannedStep& step);
  void OrderFlows();
  enum class Walk : uint8_t { kGoesOn, kStops };
  Walk Consider(Sequence* next, bool lets_others_go, int64_t budget, PlannedStep* step);
  bool WaitsForOthers(const Sequence& sequence, const PlannedStep& step) const;
  bool MakeRoom(Sequence* waiting, PlannedStep* step);
  bool DisplacesLast(const Sequence& next) const;
  Sequence* LastOfHog(const Sequence& next) const;
  Sequence* LastOfCall(uint64_t call, size_t index, const Sequence& other) const;
  Sequence* LastOfLargestCall(const Sequence& next, const PlannedStep& step) const;
  Sequence* VictimFor(const Sequence& next, const PlannedStep& step) const;
  void MakeRunning(Sequence* sequence, PlannedStep* step);
  void PromoteOverdue(int64_t now_us);
  void Promote(RequestState* request);
  void GiveUp(Sequence* victim, PlannedStep* step);
  Sequence* UnforkWorkers(Sequence* victim, PlannedStep* step);
  void Park(Sequence* sequence);
  void ParkLast(PlannedStep* step);

  const SchedulerParts parts_;
  const std::unique_ptr<Policy> policy_;
  CallHolds holds_;            // counted when sequences wait, or pages are short
  WaitingQueue waiting_;       // new requests and preempted sequences
  SequenceId blocked_{};       // the sequence that did not fit when
  int64_t blocked_spare_ = 0;  // this many pages were to spare beside its adapter's
  int64_t wanted_ = 0;         // tokens that the prompts of the step being planned have to run
  uint64_t arrivals_ = 0;
  CallOrder calls_;
  int32_t num_parked_ = 0;
  int32_t num_unstarted_ = 0;
  int32_t num_with_adapter_ = 0;
  StepCost unstarted_;  // of the prompts of those requests
};

}  // namespace heddle::scheduler
