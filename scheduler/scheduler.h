// Decides which tokens run in the next step and on which pages. Pure logic: no clock, no thread,
// no device, no I/O; time comes in as an argument (microseconds of any steady clock).
//
// Life of a step: Plan writes it, the caller has it executed, Commit takes the result. Requests may
// be added and cancelled at any time, also between Plan and Commit. If an executor takes several
// plans, PlanAhead writes the next one before the result is there (docs/decisions/0022).
// A plan holds one token of every sequence that is past its prompt (decodes), then chunks of
// prompts up to the step's token budget: a long prompt never holds up running streams.
// Source: Agrawal et al., "SARATHI", 2023.
//
// This class books requests and results. Its parts decide who gets a place (admission.h), which
// clients are ahead of their shares (client_shares.h), what is already computed (prefix_matcher.h),
// which adapters are loaded (adapter_pool.h), how much a step takes on (step_budget.h), and which
// rows and pages that makes (step_planner.h).
//
// Memory: growth is not reserved. When pages run out, the least urgent running sequence gives its
// pages back and is computed again later from its prompt and generated tokens. The most urgent one
// is never preempted, so there is always progress, and everything admitted finishes. Only what the
// prefix cache has lost is computed again: with a tier in the host's memory, preemption is
// swapping. A sequence has a page table for each group of layers (docs/decisions/0018).
//
// Invariants (CheckIntegrity): a page's references are exactly the tables that hold it; waiting,
// parked and finished sequences hold none; the running ones are in the order of service.
// Thread-safety: none; owned by the engine loop's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "base/in_flight.h"
#include "engine/step.h"
#include "scheduler/adapter_pool.h"
#include "scheduler/admission.h"
#include "scheduler/client_shares.h"
#include "scheduler/flight.h"
#include "scheduler/kept_contexts.h"
#include "scheduler/prefix_matcher.h"
#include "scheduler/scheduler_parts.h"
#include "scheduler/scheduler_types.h"
#include "scheduler/step_planner.h"

namespace heddle::scheduler {

class Scheduler {
 public:
  // Aborts unless all options are positive and page_tokens is a power of two.
  explicit Scheduler(const SchedulerOptions& options);
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // INVALID_ARGUMENT if the request could never run with these options; says what would fit.
  static absl::Status Validate(const GenerationRequest& request, const SchedulerOptions& options);
  // The most positions of a sequence, beside an adapter of `adapter_pages`, in plain order.
  static int32_t MaxContext(const SchedulerOptions& options, int32_t adapter_pages = 0) {
    return SchedulerLimits::MaxContext(options, adapter_pages);
  }

  // OK, or why branches cannot be joined side by side on a model with these groups of layers.
  static absl::Status CanJoin(const SchedulerOptions& options);
  // OK, or why workers cannot see each other (workers.h).
  static absl::Status CanWatch(const SchedulerOptions& options);

  // Queues a request that arrived at `now_us`. REQUIRES: Validate is OK; the id is new.
  void Add(GenerationRequest request, int64_t now_us);

  // Ends all branches of a request, one branch, or all requests: frees their pages and appends
  // their last events. Unknown or finished ones are ignored.
  void Cancel(RequestId id, FinishReason reason, std::vector<SequenceEvent>* events);
  void CancelBranch(RequestId id, int32_t branch, std::vector<SequenceEvent>* events);
  void CancelAll(FinishReason reason, std::vector<SequenceEvent>* events);

  // Gives all branches of a request no rows until Resume, because its client does not take what it
  // has; steps in flight still bring their tokens. It keeps its pages and its places as long as
  // nobody else needs them, and gives them up first. It can be cancelled, and does not expire:
  // a wait begins anew with Resume. Unknown, finished, and already paused (running) ones are
  // ignored.
  void Pause(RequestId id);
  void Resume(RequestId id, int64_t now_us);

  // Remembers the first `num_tokens` tokens of context `from` as context `to` (kept_contexts.h).
  // `from` may be what a branch that still lives is going to leave: then they are the branch's.
  // Unknown contexts are ignored. O(tokens + pages).
  void ForkContext(ContextId from, int32_t num_tokens, ContextId to);
  // Remembers the concurrent join of contexts that no branch is going to leave
  // (KeptContexts::Join). O(tokens + pages).
  void JoinContexts(const ContextJoin& join) { contexts_.Join(join); }
  // Forgets a context. A branch that still lives leaves nothing by that name.
  void DropContext(ContextId id);

  // Ends with kError the requests that have been in no step max_queue_us after they were added.
  // O(expired + preempted); does nothing if max_queue_us is 0.
  void Expire(int64_t now_us, std::vector<SequenceEvent>* events);

  // Overwrites *candidates with the sequences that the next Plan or PlanAhead may give a draft:
  // their last token is known and is all that they have to run. O(running).
  void ListDraftable(std::vector<DraftCandidate>* candidates) const;

  // The sequences that have one token to run and are not paused. O(running).
  int32_t NumDecoding() const;

  // Proposes how a candidate goes on. The next plan verifies as much of it as is of use and as rows
  // and pages are left for, which may be nothing, and then forgets it. Other ids are ignored.
  // Tokens must be of the vocabulary. O(running).
  void Offer(SequenceId id, std::span<const TokenId> draft);

  // Sets what the next plan asks of the drafter beside the model, for the sequences that it draws
  // for; guesses get places that are free. It holds for one plan.
  void SetAhead(const AheadWish& wish) { planner_.SetAhead(wish); }
  // The most tokens that are guessed behind a running sequence's samples from now on. O(running).
  void LimitAhead(SequenceId id, int32_t tokens);

  // Overwrites *plan with the next step (capacity is kept). Unless plan->empty(), it must be
  // executed and committed before the next Plan. O(running + tokens); waiting requests cost
  // nothing.
  void Plan(int64_t now_us, engine::StepPlan* plan);

  // Overwrites *plan with the step behind those in flight. In a pipeline it leaves out the
  // sequences that these draw for. Elsewhere it expects each sample that draws a sequence's next
  // token to bring one: rows of such tokens name the sample (UndrawnRow). If the sequence ends
  // instead, its extra row is dropped and its pages go back at once, because steps run one after
  // the other. True: *plan is to be executed and committed after the others. False: there is
  // nothing to plan, no step or max_in_flight steps are in flight, one of them pools hidden states,
  // too many of its samples are likely to have forced tokens behind them, or somebody must be
  // preempted: call Commit, then Plan. The cost is that of Plan.
  bool PlanAhead(int64_t now_us, engine::StepPlan* plan);

  // Takes the result of the oldest step in flight, which was done at `now_us`, and appends its
  // events to *events. The cost model learns from the time since Plan, or since the last Commit.
  void Commit(const engine::StepResult& result, int64_t now_us, std::vector<SequenceEvent>* events);

  // The executor has lost the steps in flight and the content of all pages, also on the host: takes
  // the plans back, preempts whoever runs, and empties the prefix cache, so that each sequence is
  // computed again from its tokens. Contexts keep their tokens alone. Sequences that the lost plans
  // begin and end have begun and ended all the same. *notes gets the preemptions. REQUIRES: no
  // adapters. O(pages + requests).
  void ForgetPages(int64_t now_us, std::vector<StepNote>* notes);

  // The decisions of the last Plan or PlanAhead, in order, and the data that goes with its plan;
  // both are valid until the next one.
  std::span<const StepNote> notes() const { return planner_.step().notes; }
  const engine::StepLocals& locals() const { return planner_.step().locals; }

  bool idle() const { return requests_.empty(); }  // nothing is running, waiting or paused
  // Whether clients are told apart (ClientOf): by their shares, or by the policy.
  bool tells_clients_apart() const { return admission_.tells_clients_apart(); }
  SchedulerStats stats() const;
  // The adapters in the pool, and those that sequences wait for: `limit` of each at most, by id.
  // O(adapters in the pool).
  AdapterLists adapter_lists(size_t limit) const;

  // INTERNAL names the broken invariant. O(pages + running); tests, and whenever the loop is idle.
  absl::Status CheckIntegrity() const;

 private:
  void MakePlan(int64_t now_us, bool is_ahead, engine::StepPlan* plan);
  bool MayExpect() const;
  int32_t MaxDraft(const Sequence& sequence) const;
  void Expect();

  void Accept(const FlightSample& sample, const engine::SequenceGain& gain,
              const engine::StepResult& result, std::vector<SequenceEvent>* events);
  std::optional<FinishReason> Append(Sequence* sequence, TokenId token);
  void FinishPrompts(const Flight& flight, const engine::StepResult& result,
                     std::vector<SequenceEvent>* events);
  void Finish(Sequence* sequence, FinishReason reason, std::vector<SequenceEvent>* events);
  void Fail(Sequence* sequence, engine::DrawFailure failure, std::vector<SequenceEvent>* events);
  void EndWorker(Sequence* sequence, FinishReason reason);
  void Free(Sequence* sequence, FinishReason reason);
  void Place(RequestState* state) const;
  void HandOver(Sequence* carrier);
  void KeepContext(Sequence* sequence, FinishReason reason);
  void FollowKeepers();
  static SequenceEvent& AddEvent(const Sequence& sequence, std::vector<SequenceEvent>* events);
  void Sweep();
  void TakeBackFlights();
  absl::Status CheckPages() const;

  const SchedulerLimits limits_;
  SchedulerStats totals_;  // only its counters are used
  RequestMap requests_;
  PageAllocator pool_;
  StepBudget budget_;
  ClientShares shares_;
  KeptContexts contexts_;
  PrefixMatcher prefixes_;
  AdapterPool adapters_;
  RunningSet running_;
  Admission admission_;
  StepPlanner planner_;

  base::InFlight<Flight> flights_;
  uint64_t step_ = 0;  // number of the last planned step
  uint64_t last_sequence_id_ = 0;
  std::vector<SequenceId> ended_;  // to be announced to the executor
  // Ended requests, each with the last step that may name it.
  std::vector<std::pair<uint64_t, std::unique_ptr<RequestState>>> ended_requests_;
  // The live branches that are going to leave contexts.
  absl::flat_hash_map<ContextId, Sequence*> keepers_;
  bool running_has_finished_ = false;
  bool has_drafts_ = false;  // some running sequence has one
};

}  // namespace heddle::scheduler
