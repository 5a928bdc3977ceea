// What passes between the front end (HTTP, gRPC, the CLI) and the engine loop: requests down,
// events up. The only door to the engine.
//
// Threads: Submit, Cancel and Stats may be called from any thread; they post to the loop and never
// wait for a step. An EventSink is called by the loop's thread only, must return at once (push to
// a queue, wake an I/O thread), must not throw and must not call back into the engine.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "engine/step.h"
#include "scheduler/request.h"

namespace heddle::server {

using scheduler::FinishReason;
using scheduler::GenerationRequest;
using scheduler::RequestId;

// What one step brought to one branch of a request. Events of a branch come in order; `finished`
// is set on its last one and only there. A request ends when all its branches have.
struct GenerationEvent {
  int32_t branch = 0;
  std::vector<engine::SampledToken> tokens;
  std::vector<engine::SampledToken> prompt_scores;  // before the first token, if asked for
  std::vector<float> embedding;  // of the prompt, if asked for; with the last event
  int32_t cached_tokens = 0;     // of the prompt, found in the prefix cache; with the first token
  double queued_seconds = -1;    // from Submit to the request's first step; with its first event
  bool finished = false;
  FinishReason reason = FinishReason::kStop;
  absl::Status error;  // for kError: what to tell the client
};

using EventSink = std::function<void(GenerationEvent&&)>;

enum class EngineState : uint8_t {
  kServing,
  kDraining,  // finishes what it has and takes nothing new
  kFailed,    // the executor is gone; every request has ended with kError
};

// LoRA adapters. This engine runs the base model alone as yet: it has room for none.
struct AdapterStats {
  int32_t max = 0;     // that may run at once
  int32_t loaded = 0;  // in memory
  std::vector<std::string> running;
  std::vector<std::string> waiting;
  double changed_at = 0;  // Unix time, seconds, of the last change of any of these
};

struct EngineStats {
  EngineState state = EngineState::kServing;
  int32_t running_sequences = 0;
  int32_t waiting_requests = 0;
  int32_t queue_limit = 0;
  int64_t waiting_tokens = 0;      // of the prompts of waiting requests
  int64_t queue_tokens_limit = 0;  // 0: none
  int32_t pages_total = 0;
  int32_t pages_used = 0;
  int32_t pages_cached = 0;  // free, but with content that a later prompt may take over
  int32_t page_tokens = 0;
  int32_t host_pages_total = 0;  // of the tier in the host's memory or on its disk
  int32_t host_pages_used = 0;
  int64_t pages_swapped_out = 0;
  int64_t pages_swapped_in = 0;
  int32_t orphaned_requests = 0;  // in the scheduler with no sink to tell: must read 0
  int64_t steps = 0;
  int64_t steps_ahead = 0;    // of these, planned and submitted while the one before ran
  int64_t prompt_tokens = 0;  // rows computed for prompts, recomputed ones included
  int64_t cached_tokens = 0;  // prompt positions taken from the prefix cache
  int64_t generated_tokens = 0;
  int64_t forced_tokens = 0;  // of these, what grammars left no choice about and nobody drew
  int64_t step_tokens = 0;    // rows of all steps
  int64_t budget_tokens = 0;  // that they could have had within their token budgets
  int64_t preemptions = 0;
  int64_t overdue_requests = 0;    // that waited for the starvation limit and then went first
  double last_queued_seconds = 0;  // the wait of the request that started last
  double plan_seconds = 0;         // sums over all steps, by part
  double forward_seconds = 0;
  double sample_seconds = 0;
  double swap_seconds = 0;
  double emit_seconds = 0;  // delivering events, while the next step runs
  // From the end of a step to the start of the next, while there was work: as the device tells it
  // (StepTiming::idle_ns), or until the next was submitted.
  double between_seconds = 0;
  // While there is work: since the last step ended, or since the work came. 0: there is none.
  double busy_since_seconds = 0;
  AdapterStats adapters;
};

// One thing that happened to a request; what repeats itself step after step is one entry.
struct HistoryEntry {
  enum class Kind : uint8_t { kQueued, kAdmitted, kPrompt, kDecode, kPreempted, kFinished };
  Kind kind = Kind::kQueued;
  int32_t branch = 0;
  int32_t steps = 0;   // kPrompt, kDecode: how many, in a row for this branch
  int64_t tokens = 0;  // kQueued: of the prompt; kAdmitted: found in the prefix cache; kPrompt,
                       // kDecode: run; kPreempted: given up; kFinished: of the answer
  double begin_seconds = 0;  // since the request arrived
  double end_seconds = 0;
};

// What happened to a request, as far as it is remembered.
struct RequestHistory {
  RequestId id{};
  std::string label;  // GenerationRequest's: the request id of the log
  double age_seconds = 0;
  bool finished = false;
  FinishReason reason = FinishReason::kStop;
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;
  int64_t generated_tokens = 0;
  int32_t preemptions = 0;
  double queued_seconds = -1;       // until its first step; -1: it has had none
  int64_t forgotten_entries = 0;    // between the first and the others, for want of room
  std::vector<HistoryEntry> steps;  // by time
};

// Implemented by EngineLoop (loop/engine_loop.h) and by test doubles.
class GenerationService {
 public:
  virtual ~GenerationService() = default;

  virtual RequestId NextId() = 0;

  // Queues the request. RESOURCE_EXHAUSTED: the queue is full (429; retry_after.h says when to come
  // again). A request that waits for too long ends with such an error, too. UNAVAILABLE: draining
  // or failed (503). INVALID_ARGUMENT: it can never fit (the message says what would). On an error
  // the sink is never called.
  virtual absl::Status Submit(GenerationRequest request, EventSink sink) = 0;

  // Stops all branches and frees their pages within one step. After this returns the sink may be
  // called once more at most per branch. Unknown or finished ids are ignored.
  virtual void Cancel(RequestId id) = 0;

  // Stops one branch (its stop string was found); the others go on.
  virtual void CancelBranch(RequestId id, int32_t branch) = 0;

  virtual EngineStats Stats() const = 0;

  // The requests that are remembered, the newest first, without their steps; and all of one, by its
  // label or its number. For people who look for a cause; not cheap.
  virtual std::vector<RequestHistory> Histories() const { return {}; }
  virtual std::optional<RequestHistory> History(std::string_view) const { return std::nullopt; }
};

}  // namespace heddle::server
