// The interface between the front end (HTTP, gRPC, the CLI) and the engine loop: requests go in,
// events come out. The front end reaches the engine in no other way.
//
// Threads: the members of GenerationService may be called from any thread; they post to the loop
// and never wait for a step. Only the loop's thread calls an EventSink, which must return at once
// (push to a queue, wake an I/O thread), must not throw and must not call back into the engine.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "engine/draft/drafter.h"
#include "engine/step.h"
#include "scheduler/ahead_budget.h"
#include "scheduler/draft_budget.h"
#include "scheduler/request.h"
#include "scheduler/scheduler_types.h"

namespace heddle::server {

using scheduler::FinishReason;
using scheduler::GenerationRequest;
using scheduler::RequestId;

// The result of one step for one branch of a request. Events of a branch come in order; only the
// last one has `finished` set. A request ends when all its branches have ended.
struct GenerationEvent {
  int32_t branch = 0;
  std::vector<engine::SampledToken> tokens;
  std::vector<engine::SampledToken> prompt_scores;  // if asked for, before the first token
  std::vector<float> embedding;  // of the prompt, if asked for; in the last event
  int32_t cached_tokens = 0;     // prompt tokens in whole cached pages; with the first token
  double queued_seconds = -1;    // from Submit to the first step; in the first event
  bool finished = false;
  FinishReason reason = FinishReason::kStop;
  absl::Status error;  // for kError: the client's error
};

using EventSink = std::function<void(GenerationEvent&&)>;

enum class EngineState : uint8_t {
  kServing,
  kRecovering,  // waits for lost ranks; requests keep what they have, and new ones are refused
  kDraining,    // finishes what it has and takes nothing new
  kFailed,      // the executor failed; every request has ended with kError
};

// LoRA adapters in the pool. Where they are on their way there: AdapterFigures.
struct AdapterStats {
  int32_t max = 0;     // that may run at once
  int32_t loaded = 0;  // with all pages in the pool
  int32_t pages = 0;   // of the pool, with adapters' content
  int64_t bytes = 0;   // of those pages
  int32_t waiting_sequences = 0;
  int64_t uses = 0;  // sequences with an adapter that got a place
  int64_t hits = 0;  // of these, with all of its pages in the pool
  int64_t pages_loaded = 0;
  int64_t pages_evicted = 0;
  double wait_seconds = 0;  // sum over sequences: from their place until the adapter was there
  // Some of them by name, looked at several times a second (kMaxListed at most).
  scheduler::AdapterLists lists;
  double changed_at = 0;  // Unix time, seconds, of the last change of the lists

  static constexpr size_t kMaxListed = 100;
};

struct EngineStats {
  EngineState state = EngineState::kServing;
  std::string why;  // while it recovers: what is missing, for clients
  int64_t recoveries = 0;
  int32_t running_sequences = 0;  // without those that are paused
  int32_t paused_sequences = 0;   // their clients do not read (Pause)
  int32_t waiting_requests = 0;
  int32_t queue_limit = 0;
  int64_t waiting_tokens = 0;      // prompt tokens of waiting requests
  int64_t queue_tokens_limit = 0;  // 0: none
  int32_t pages_total = 0;
  int32_t pages_used = 0;
  int32_t pages_cached = 0;   // free pages whose content a later prompt may take over
  int32_t kept_contexts = 0;  // of branches that others may fork or go on from
  int32_t page_tokens = 0;
  int32_t host_pages_total = 0;  // in the host's memory or on its disk
  int32_t host_pages_used = 0;
  int64_t pages_swapped_out = 0;
  int64_t pages_swapped_in = 0;
  int32_t orphaned_requests = 0;  // in the scheduler but without a sink: must be 0
  int64_t steps = 0;
  int64_t steps_ahead = 0;    // those planned and submitted while the step before ran
  int64_t prompt_tokens = 0;  // rows computed for prompts, recomputed ones included
  int64_t cached_tokens = 0;  // prompt positions taken from the prefix cache, in whole pages
  int64_t generated_tokens = 0;
  int64_t forced_tokens = 0;  // those that a grammar forced and nobody drew
  scheduler::DraftBudgetStats drafts;
  engine::DrafterCounts drafters;
  scheduler::AheadStats ahead;  // of the drafter beside the model
  int64_t step_tokens = 0;      // rows of all steps
  int64_t budget_tokens = 0;    // the token budgets of those steps
  int64_t preemptions = 0;
  int64_t held_sequences = 0;      // sequence-steps without rows because a client was ahead
  int32_t live_clients = 0;        // with requests; 0: clients are not told apart
  int64_t overdue_requests = 0;    // waited for the starvation limit and then went first
  double last_queued_seconds = 0;  // the wait of the request that started last
  double plan_seconds = 0;         // sums over all steps, by part
  double forward_seconds = 0;
  double sample_seconds = 0;
  double swap_seconds = 0;
  double emit_seconds = 0;  // delivering events, while the next step runs
  // From the end of a step to the start of the next while there was work: as the device reports it
  // (StepTiming::idle_ns), or until the next submission.
  double between_seconds = 0;
  double idle_seconds = 0;  // without any request
  // While there is work: time since the last step ended, or since the work came. 0: no work.
  double busy_since_seconds = 0;
  AdapterStats adapters;
};

// One event in a request's life; steps that repeat the same event share an entry.
struct HistoryEntry {
  enum class Kind : uint8_t { kQueued, kAdmitted, kPrompt, kDecode, kPreempted, kFinished };
  Kind kind = Kind::kQueued;
  int32_t branch = 0;
  int32_t steps = 0;   // kPrompt, kDecode: consecutive steps of this branch
  int64_t tokens = 0;  // kQueued: prompt; kAdmitted: found in the prefix cache; kPrompt, kDecode:
                       // run; kPreempted: given up; kFinished: answer
  double begin_seconds = 0;  // from the request's arrival
  double end_seconds = 0;
};

// A request that ran a branch of a tree, for drawing the tree.
struct BranchRun {
  RequestId id{};
  std::string branch;
  bool finished = false;
  FinishReason reason = FinishReason::kStop;
  int32_t cached_tokens = 0;
  int64_t generated_tokens = 0;
  int32_t preemptions = 0;
  double begin_seconds = 0;  // from the arrival of the first one that is remembered
  double end_seconds = 0;    // now, while it runs
};

// The remembered part of a request's life.
struct RequestHistory {
  RequestId id{};
  std::string label;         // GenerationRequest's label: the request id of the log
  std::string tree, branch;  // GenerationRequest's
  double age_seconds = 0;
  bool finished = false;
  FinishReason reason = FinishReason::kStop;
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;
  int64_t generated_tokens = 0;
  int32_t preemptions = 0;
  double queued_seconds = -1;       // until its first step; -1: it has had none
  int64_t forgotten_entries = 0;    // dropped behind the first entry, for want of room
  std::vector<HistoryEntry> steps;  // by time
  std::vector<BranchRun> runs;      // of its tree, by arrival; empty: it has none
};

// Implemented by EngineLoop (loop/engine_loop.h) and by test doubles.
class GenerationService {
 public:
  virtual ~GenerationService() = default;

  virtual RequestId NextId() = 0;

  // Queues the request. RESOURCE_EXHAUSTED: the queue is full (429; retry_after.h says when to try
  // again). A request that waits too long ends with such an error, too. UNAVAILABLE: draining,
  // failed, or recovering, which comes with such an advice (503). INVALID_ARGUMENT: it can never
  // fit (the message says what would). After an error the sink is never called.
  virtual absl::Status Submit(GenerationRequest request, EventSink sink) = 0;

  // Stops all branches and frees their pages within one step. After this returns the sink is called
  // at most once more per branch. Unknown or finished ids are ignored.
  virtual void Cancel(RequestId id) = 0;

  // Stops one branch (its stop string was found); the others go on.
  virtual void CancelBranch(RequestId id, int32_t branch) = 0;

  // The request's client does not take what it has: all branches get no rows from one of the next
  // steps on, until Resume, and give up what they hold when others need it. What was in flight is
  // still delivered. Everything else may be called meanwhile. Unknown or finished ids are ignored.
  virtual void Pause(RequestId id) = 0;
  virtual void Resume(RequestId id) = 0;

  // Contexts that branches leave for others (scheduler/kept_contexts.h): the first `num_tokens`
  // tokens of `from` are known as `to`, too; and one is forgotten. Unknown ones are ignored. Orders
  // come in order, and behind the requests that were submitted before.
  virtual void ForkContext(scheduler::ContextId /*from*/, int32_t /*num_tokens*/,
                           scheduler::ContextId /*to*/) {}
  // NOLINTNEXTLINE(performance-unnecessary-value-param): joins contexts that no request runs.
  virtual void JoinContexts(scheduler::ContextJoin /*join*/) {}
  virtual void DropContext(scheduler::ContextId /*id*/) {}

  virtual EngineStats Stats() const = 0;

  // Histories returns the remembered requests, the newest first, without their steps; History
  // returns all of one, by its label or number. They are for troubleshooting and not cheap.
  virtual std::vector<RequestHistory> Histories() const { return {}; }
  virtual std::optional<RequestHistory> History(std::string_view) const { return std::nullopt; }
};

}  // namespace heddle::server
