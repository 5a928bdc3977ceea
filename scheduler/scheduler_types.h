// The scheduler's inputs and outputs apart from plans and results: its options, the events of
// branches, notes on what a plan decided, and statistics. Plain data.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "engine/page_rule.h"
#include "scheduler/policy.h"
#include "scheduler/request.h"

namespace heddle::scheduler {

// Chooses target_step_us as twice the time of a step of the streams alone, counted as if all
// streams had begun, including those that are still prompts or wait for a place. A token beside a
// chunk then comes at most twice as late as the others, and steps take the same time however many
// streams have begun: with fewer streams, more prompt tokens are read. The target is at least 20
// ms: nobody reads a stream of 50 tokens a second as it comes.
inline constexpr int64_t kAutomaticTarget = -1;

struct SchedulerOptions {
  int32_t num_pages = 0;
  int32_t num_host_pages = 0;          // of the prefix cache's second tier; 0: none
  int32_t page_tokens = 0;             // a power of two
  int32_t max_context = 0;             // positions per sequence
  std::vector<int32_t> windows = {0};  // ExecutorLimits::windows: one per group of layers
  int32_t window_grain = 1;            // ExecutorLimits::window_grain
  int32_t state_groups = 0;            // ExecutorLimits::state_groups
  bool state_is_snapshot = false;      // ExecutorLimits::state_is_snapshot
  int32_t segments = 0;                // ExecutorLimits::segments
  bool layers_have_windows = false;    // ExecutorLimits::layers_have_windows
  bool reads_pieces = false;           // ExecutorLimits::reads_pieces
  bool turns_queries = false;          // ExecutorLimits::turns_queries
  bool whole_prompts = false;          // ExecutorLimits::whole_prompts
  int32_t max_step_tokens = 0;         // rows per plan
  int32_t max_step_seqs = 0;           // sequences per plan, and running at a time
  int32_t pipeline_stages = 1;         // ExecutorLimits::pipeline_stages
  int32_t max_in_flight = 2;           // Executor::max_in_flight
  // Pages that sequences give back while steps are in flight stay as they are until these are done.
  bool holds_pages = false;
  // While streams run, a step gets only so many prompt rows that its predicted time stays within
  // this (but at least kMinChunkTokens, so that prompts progress). 0: always max_step_tokens;
  // kAutomaticTarget: chosen by StepBudget.
  int64_t target_step_us = 0;
  // The wait for a first step after which Expire ends a request; 0: never.
  int64_t max_queue_us = 0;
  int32_t max_draft_tokens = 0;     // ExecutorLimits::max_draft_tokens
  int32_t rows_beyond_guesses = 0;  // ExecutorLimits::rows_beyond_guesses
  bool prefix_cache = true;         // keep full pages for later prompts that share a prefix
  PolicyKind policy = PolicyKind::kFcfs;
  // A sequence that has waited this long (since its arrival or its preemption) goes ahead of all
  // that have not, under every policy, and is not preempted for them, unless its client is ahead of
  // others (max_lead_us). 0: no such bound.
  int64_t starvation_us = 0;
  // How far a client's use of the machine may be ahead of others' (client_shares.h), at least one
  // of its steps. 0: clients are not told apart, unless the policy does.
  int64_t max_lead_us = 0;
  // LoRA adapters (adapter_pool.h). ExecutorLimits::adapter_slots, at least as many as sequences
  // run; 0: none, and requests with an adapter are refused.
  int32_t adapter_slots = 0;
  // Pages of adapters that a step loads while it has rows of sequences that need none of them.
  int32_t adapter_load_pages = 8;
  // The time to load one page: what it costs to lose one. The unit is that of StepBudget::PageUs.
  double adapter_page_us = 1;

  // Whether some layer has to know positions that are not places in the list of spans.
  bool counts_positions() const {
    return layers_have_windows ||
           std::any_of(windows.begin(), windows.end(), [](int32_t window) { return window > 0; });
  }

  engine::PageRule page_rule() const {
    return {.page_tokens = page_tokens,
            .window_grain = window_grain,
            .step_tokens = max_step_tokens,
            .state_groups = state_groups};
  }
};

// The result of a committed step (or a cancellation) for one branch. Ranges index the committed
// StepResult. `finished` is set on a branch's last event and only there.
struct SequenceEvent {
  RequestId request{};
  int32_t branch = 0;
  engine::SequenceId sequence{};  // the branch, as drafters know it
  int32_t token_begin = 0;        // index in StepResult::tokens
  int32_t num_tokens = 0;
  int32_t num_drafted = 0;   // proposed tokens that this step verified
  int32_t num_accepted = 0;  // of these, the first of `num_tokens`
  int32_t score_begin = 0;   // prompt scores; with the lowest live branch
  int32_t num_scores = 0;
  int32_t pooled = -1;        // index of its embedding; on the last event
  int32_t cached_tokens = 0;  // prompt tokens from the cache; on the first token's event
  int64_t queued_us = -1;     // from Add to the first step; on the request's first event
  bool finished = false;
  FinishReason reason = FinishReason::kStop;
  engine::DrawFailure failure = engine::DrawFailure::kNone;  // with FinishReason::kError
  int32_t num_drawn = 0;  // with a failure: the tokens of the answer before the step
};

// A running sequence that the next plan may give a draft. Pointers are valid until the next call
// that changes the scheduler.
struct DraftCandidate {
  engine::SequenceId id{};
  int32_t branch = 0;
  const GenerationRequest* request = nullptr;
  std::span<const TokenId> generated;
  int32_t max_tokens = 0;  // of a useful draft; at least 1
};

// Request of the next plan to the drafter beside the model (engine/step.h, DraftAhead).
struct AheadWish {
  int32_t tokens = 0;      // guesses for each sequence that draws; 0: none
  float min_survival = 0;  // DraftAhead::min_survival
  int32_t max_catch_up = std::numeric_limits<int32_t>::max();
  bool feeds_drafter = false;  // StepPlan::feeds_drafter
};

// A decision of the last plan about one branch, for the history of its request.
struct StepNote {
  enum class Kind : uint8_t {
    kAdmitted,   // got a place; `tokens` of it were found in the prefix cache
    kPreempted,  // gave its place up; `tokens` had been computed
    kPrompt,     // `tokens` of the prompt, or of what a preemption dropped, run in this step
    kDecode,     // one token runs
    kDraft,      // one token runs, and behind it `tokens` - 1 proposed ones
  };
  RequestId request{};
  int32_t branch = 0;
  Kind kind = Kind::kDecode;
  int32_t tokens = 0;
};

// Adapters by where they are, for the outside.
struct AdapterLists {
  std::vector<engine::AdapterId> resident;  // all pages are in the pool
  std::vector<engine::AdapterId> waiting;   // of sequences that wait, and not resident

  bool operator==(const AdapterLists&) const = default;
};

struct SchedulerStats {
  int32_t running_sequences = 0;  // without those that are paused
  int32_t paused_sequences = 0;   // with pages or without
  int32_t waiting_requests = 0;   // requests that were in no step yet and are not paused
  int64_t waiting_tokens = 0;     // prompt tokens of those
  int32_t live_requests = 0;
  int32_t pages_used = 0;
  int32_t pages_cached = 0;  // no holder, but a later prompt may take them over
  int32_t host_pages_used = 0;
  int32_t kept_contexts = 0;  // pages of these count as cached, unless a sequence has them
  int64_t pages_swapped_out = 0;
  int64_t pages_swapped_in = 0;
  int64_t cached_tokens = 0;       // prompt positions taken from the prefix cache
  int64_t cached_page_tokens = 0;  // of these, in whole pages of each request
  int64_t prompt_tokens = 0;       // rows planned for prompts and for what preemption dropped
  int64_t recomputed_tokens = 0;   // of these, rows that had been computed before
  int64_t generated_tokens = 0;
  int64_t forced_tokens = 0;    // of these, tokens that a grammar forced and nobody drew
  int64_t drafted_tokens = 0;   // proposed tokens that steps verified
  int64_t accepted_tokens = 0;  // of these, tokens of answers
  int64_t ahead_requests = 0;   // samples behind which the drafter beside the model guessed
  int64_t step_tokens = 0;      // rows of all steps
  int64_t budget_tokens = 0;    // the decodes and prompt budgets of those steps
  int64_t preemptions = 0;
  int64_t held = 0;  // times that a running sequence got no rows because its client was ahead
  int32_t live_clients = 0;       // that have requests, if clients are told apart
  int64_t overdue = 0;            // requests that waited for starvation_us and went ahead of others
  int32_t adapters_resident = 0;  // adapters with all pages in the pool
  int32_t adapter_pages = 0;      // pages of the pool with adapters' content
  int32_t adapter_waiting = 0;    // running sequences that wait until their adapter is loaded
  int64_t adapter_uses = 0;       // sequences with an adapter that got a place
  int64_t adapter_hits = 0;       // of these, with all pages there or chosen for loading
  int64_t adapter_pages_loaded = 0;
  int64_t adapter_pages_evicted = 0;
  int64_t adapter_wait_us =
      0;  // sum over sequences, from their place to the step that may run them
};

}  // namespace heddle::scheduler
