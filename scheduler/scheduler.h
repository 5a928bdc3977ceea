// Decides which tokens run in the next step and on which pages. Pure logic: no clock, no thread,
// no device, no I/O; time comes in as an argument (microseconds of any steady clock).
//
// Life of a step: Plan writes it, the caller has it executed, Commit takes the result. Requests may
// be added and cancelled at any time, also between Plan and Commit. Where an executor takes two
// plans, PlanAhead writes the next one before the result is there (docs/decisions/0022).
// A plan holds, first, one token of every sequence that is past its prompt (decodes), then chunks
// of prompts up to the step's token budget: a long prompt never holds up running streams.
// Source: Agrawal et al., "SARATHI", 2023.
//
// Order: a policy (policy.h) says who is served first; a bound on the time that anybody is passed
// over holds for all of them. Nobody who came later and is not overdue himself gets a place while
// an overdue sequence waits for one.
//
// Memory: a request is admitted when its whole prompt fits beside what the running ones are sure
// to need. Growth is not reserved: when pages run out, the least urgent running sequence gives its
// pages back and is computed again later from prompt and generated tokens. The most urgent one is
// never preempted, so something always progresses; everything admitted finishes. What is computed
// again is what the prefix cache has lost: with a tier in the host's memory, preemption is
// swapping. Pages go there, and come back, where moving one takes less time than computing it.
// Layers may be in groups that see differently far: a sequence has a page table for each, and what
// a group's window has passed goes back (docs/decisions/0018).
//
// Invariants (CheckIntegrity): a page's references are exactly the tables that hold it; waiting
// and finished sequences hold none; `running_` is in the order of service.
// Thread-safety: none; owned by the engine loop's thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "engine/step.h"
#include "scheduler/cost_model.h"
#include "scheduler/page_allocator.h"
#include "scheduler/policy.h"
#include "scheduler/prefix_cache.h"
#include "scheduler/request.h"
#include "scheduler/scheduler_types.h"
#include "scheduler/sequence.h"
#include "scheduler/waiting_queue.h"

namespace heddle::scheduler {

class Scheduler {
 public:
  // Aborts unless all options are positive and page_tokens is a power of two.
  explicit Scheduler(const SchedulerOptions& options);

  // INVALID_ARGUMENT if the request could never run with these options; says what would fit.
  static absl::Status Validate(const GenerationRequest& request, const SchedulerOptions& options);

  // The most positions that one sequence can have: the model's limit or the pool. Where all layers
  // have windows, a pool that holds one and a step beside it holds any context.
  static int32_t MaxContext(const SchedulerOptions& options);

  // Queues a request that arrived at `now_us`. REQUIRES: Validate is OK; the id is new.
  void Add(GenerationRequest request, int64_t now_us);

  // Ends all branches, frees their pages, and appends their last events with `reason`. An unknown
  // or finished id is ignored.
  void Cancel(RequestId id, FinishReason reason, std::vector<SequenceEvent>* events);

  // Ends one branch; the others go on.
  void CancelBranch(RequestId id, int32_t branch, std::vector<SequenceEvent>* events);

  // Ends requests that have been in no step max_queue_us after they were added, with kError.
  // O(expired + preempted); nothing with max_queue_us = 0.
  void Expire(int64_t now_us, std::vector<SequenceEvent>* events);

  // Ends every request with `reason`.
  void CancelAll(FinishReason reason, std::vector<SequenceEvent>* events);

  // Overwrites *plan with the next step (capacity is kept). Unless plan->empty(), it must be
  // executed and committed before the next Plan. O(running + tokens); waiting requests cost
  // nothing.
  void Plan(int64_t now_us, engine::StepPlan* plan);

  // Overwrites *plan with the step behind the one in flight, on the expectation that each of its
  // samples brings one token: rows of such tokens name the sample (engine/step.h). A sequence that
  // ends otherwise has a row too much there, which is dropped; its pages go back at once, as steps
  // run one after the other. True: *plan is to be executed and committed after the other. False:
  // there is nothing to plan, there are two already, that in flight pools hidden states, too many
  // of its samples are likely to have forced tokens behind them, or somebody must be preempted:
  // Commit, then Plan. Cost as Plan's.
  bool PlanAhead(int64_t now_us, engine::StepPlan* plan);

  // Takes the result of the oldest step in flight, which was done at `now_us`, and appends what it
  // brought to *events. The time since Plan, or since the last Commit, teaches the cost model.
  void Commit(const engine::StepResult& result, int64_t now_us, std::vector<SequenceEvent>* events);

  // Of the last Plan or PlanAhead, in the order of its decisions; valid until the next.
  std::span<const StepNote> notes() const { return notes_; }

  // Nothing is running or waiting.
  bool idle() const { return requests_.empty(); }
  SchedulerStats stats() const;

  // INTERNAL names the broken invariant. O(pages + running); tests, and whenever the loop is idle.
  absl::Status CheckIntegrity() const;

 private:
  // What a tenant is charged per token of a prompt that is computed, and per token that it gets:
  // an answer's token takes a pass over the weights of its own. The weights of the paper on VTC.
  static constexpr int64_t kPromptCharge = 1;
  static constexpr int64_t kAnswerCharge = 2;

  // The rows of a plan that report scores for a request.
  struct ScoreOwner {
    RequestState* request;
    int32_t begin;
    int32_t count;
  };

  // A step that is planned and not committed.
  struct Flight {
    uint64_t step = 0;
    int64_t planned_us = 0;
    StepCost cost;
    int32_t num_swaps = 0;
    bool has_pools = false;
    std::vector<Sequence*> sample_owners;  // parallel to the plan's samples
    std::vector<ScoreOwner> score_owners;
    std::vector<RequestState*> prompts_only;  // max_tokens = 0, finished by this step
  };

  // Planning, in this order (scheduler_plan.cc).
  bool GoesOn(const Sequence& owner) const;
  bool MayExpect() const;
  void Expect();
  void MakePlan(int64_t now_us, engine::StepPlan* plan);
  void DropPassed();
  int32_t PlanDecodes();
  double StreamsAloneUs(const StepCost& decodes) const;
  int32_t PromptBudget(int32_t decodes) const;
  void Admit(int32_t budget);
  void PlanPrompts(int32_t budget);
  void AssignPages();
  void Write(engine::StepPlan* plan, Flight* flight);

  int32_t FitPages(Sequence* sequence, size_t index, int32_t reserved);
  void Preempt(Sequence* victim);
  void Note(const Sequence& sequence, StepNote::Kind kind, int32_t tokens) {
    notes_.push_back({sequence.request->request.id, sequence.branch, kind, tokens});
  }
  void WriteSequence(Sequence* sequence, engine::StepPlan* plan, Flight* flight);
  void WriteFork(Sequence* carrier, int32_t row, engine::StepPlan* plan, Flight* flight);
  void InsertRunning(Sequence* sequence);

  // Admission (scheduler_admit.cc).
  int32_t PagesToRun(const Sequence& sequence) const;
  int64_t SparePages() const;
  bool FitsBeside(const Sequence& sequence) const;
  bool MayFit(const Sequence& sequence) const;
  bool MakeRoom(const Sequence& next);
  bool DisplacesLast(const Sequence& next) const;
  int32_t NumRunning(int32_t flow) const;
  void MakeRunning(Sequence* sequence);
  void PromoteOverdue();
  void Promote(RequestState* request);
  int64_t EstimateWorkUs(const GenerationRequest& request) const;

  // The prefix cache (scheduler_prefix.cc).
  void HashPrompt(RequestState* request) const;
  std::span<const TokenId> PageTokens(const Sequence& sequence, int32_t page);
  uint64_t HashAfter(const Sequence& sequence, int32_t page, uint64_t chain,
                     std::span<const TokenId> tokens) const;
  void TakeCached(Sequence* sequence);
  void FindPath(const Sequence& sequence, int32_t wanted, bool may_fetch);
  int32_t CoveredDepth(bool may_fetch) const;
  int32_t FirstSeen(int32_t group, int32_t position) const;
  bool TakePath(Sequence* sequence, int32_t depth);
  bool TakePages(PageTable* table, int32_t group, int32_t depth);
  void PinPath(int32_t depth);
  void TakePartial(Sequence* sequence, int32_t wanted);
  bool IsWithinReach(PageId node, int32_t depth, bool may_fetch) const;
  bool SwapPays(int32_t depth) const;
  double PageUs(int32_t depth) const;
  void LeaveCached(Sequence* sequence);
  void LeaveCompanions(Sequence* sequence, int32_t page, PageId node);
  bool FindsLeader(Sequence* sequence) const;
  bool WaitsForLeader(RequestState* request) const;

  void Accept(Sequence* sequence, const engine::StepResult& result, int32_t sample,
              std::vector<SequenceEvent>* events);
  std::optional<FinishReason> Append(Sequence* sequence, TokenId token);
  bool IsFull(const Sequence& sequence, int32_t more) const;
  void Learn(const Flight& flight, double swap_us, int64_t now_us);
  void Finish(Sequence* sequence, FinishReason reason, std::vector<SequenceEvent>* events);
  void HandOver(Sequence* carrier);
  SequenceEvent& AddEvent(const Sequence& sequence, std::vector<SequenceEvent>* events);
  void CountStarted(const RequestState& request);
  void Sweep();
  absl::Status CheckPages() const;

  const SchedulerOptions options_;
  const int32_t max_context_;
  const int32_t max_running_;
  const int32_t num_groups_;         // of layers, each with a page table per sequence
  const bool has_windows_;           // some group gives pages back
  std::vector<int32_t> most_pages_;  // [groups] that one sequence holds at a time
  PageAllocator pool_;
  std::unique_ptr<PageAllocator> host_pool_;  // slots of the second tier; null: none
  PrefixCache cache_;
  CostModel cost_model_;
  std::unique_ptr<Policy> policy_;

  absl::flat_hash_map<RequestId, std::unique_ptr<RequestState>> requests_;
  std::vector<Sequence*> running_;  // in the order of service
  WaitingQueue waiting_;            // new requests and preempted sequences
  // With the last step that may name them.
  std::vector<std::pair<uint64_t, std::unique_ptr<RequestState>>> ended_requests_;
  std::vector<SequenceId> ended_;  // to be told to the executor
  bool running_has_finished_ = false;

  // The step being planned.
  int64_t now_us_ = 0;
  bool is_ahead_ = false;
  bool needs_tokens_ = false;  // the next plan must know them: somebody has to be preempted
  std::vector<TokenId> page_scratch_;
  std::vector<PageId> path_, pinned_;  // of TakeCached: what is found, page by page
  SequenceId blocked_{};               // did not fit beside the running ones when
  int64_t blocked_spare_ = 0;          // so many pages were to spare
  std::vector<Sequence*> prompts_;
  std::vector<int32_t> wants_, shares_;
  std::vector<Sequence*> forks_;
  std::vector<StepNote> notes_;
  int32_t slots_ = 0;           // branches of the running sequences, those still to be forked too
  int64_t reserved_pages_ = 0;  // that the running sequences need for the tokens they have

  std::array<Flight, 2> flights_;  // the first num_flights_, the oldest first
  int32_t num_flights_ = 0;
  uint64_t step_ = 0;         // the last one planned
  int64_t committed_us_ = 0;  // when the last step was done
  StepCost last_cost_;        // of the last step planned that has rows
  uint64_t arrivals_ = 0;
  double swap_us_per_page_ = 0;    // the latest weighing most; 0: none yet
  double mean_answer_tokens_ = 0;  // of finished sequences, the latest weighing most; 0: none yet
  uint64_t last_sequence_id_ = 0;
  int32_t num_unstarted_ = 0;
  int64_t unstarted_tokens_ = 0;  // of their prompts
  SchedulerStats totals_;         // the counters among its fields
};

}  // namespace heddle::scheduler
