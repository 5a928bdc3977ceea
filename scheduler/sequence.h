// The scheduler's state of a request and of its branches while they live. Plain data; only the
// scheduler edits it.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/step.h"
#include "scheduler/kv_tables.h"
#include "scheduler/policy.h"
#include "scheduler/request.h"

namespace heddle::scheduler {

using engine::SequenceId;

struct RequestState;

enum class Phase : uint8_t {
  kUnforked,  // waits for the branch that computes the prompt for all of them (the carrier)
  kWaiting,   // holds no page; in the scheduler's waiting set
  kRunning,   // holds pages; in the scheduler's running list
  kParked,    // would wait, but its request is paused; holds no page and is in no list
  kFinished,
};

// One branch of a request: the prompt, the tokens drawn after it, and the pages of the positions
// whose keys and values are computed (or will be when the planned step is done).
struct Sequence {
  SequenceId id{};
  int32_t branch = 0;
  RequestState* request = nullptr;
  Phase phase = Phase::kUnforked;
  bool begun = false;            // the executor has heard of it
  int32_t num_planned = 0;       // tokens in the step being planned
  int32_t num_recompute = 0;     // positions that had been computed before a preemption
  int32_t num_found = 0;         // positions that it had when it was admitted
  int32_t num_hashed_pages = 0;  // leading pages that are in the prefix cache; -1: none will be
  int32_t num_followed = 0;      // leading positions that the lists for its forks have
  int32_t num_expected = 0;  // 1: a step in flight draws a token that the plan behind it counts on
  uint64_t expected_step = 0;   // that step
  int32_t expected_sample = 0;  // and its sample
  bool is_awaited = false;      // the same in a pipeline, where no plan counts on it
  uint64_t drawn_step = 0;      // the last step that draws for it
  std::vector<TokenId> draft;   // proposed behind its tokens, for the step being planned
  int32_t num_drafted = 0;      // of these, rows of the step that is planned or in flight
  int32_t max_ahead = std::numeric_limits<int32_t>::max();  // guesses behind its samples, at most
  int32_t num_ahead = 0;                                    // of the step being planned
  int32_t ahead_slot = 0;  // their first one in StepPlan::ahead_slots
  float forcing = 0;       // running share (0 to 1) of draws behind which its grammar forced tokens
  uint64_t chain = 0;      // hash of the hashed pages
  bool uses_adapter = false;     // counts among the users of its adapter (adapter_pool.h)
  int32_t adapter_slot = -1;     // of its adapter; -1: the base model, or waits for its adapter
  int64_t adapter_since_us = 0;  // since when it uses it
  std::vector<TokenId> generated;
  // Workers only (workers.h): while the request is not forked, what it has behind the prompt, which
  // is in `generated` otherwise; how much of that it was given; and whether its answer has ended,
  // though others still see it.
  std::vector<TokenId> block;
  int32_t num_given = 0;
  bool is_over = false;
  KvTables tables;
  // WaitingQueue keeps these while it waits: since when, and its neighbours in that order.
  int64_t waiting_since_us = 0;
  Sequence* waits_after = nullptr;
  Sequence* waits_before = nullptr;

  inline int32_t num_tokens() const;  // prompt and generated
  // Tokens of its answer: those of `generated` that it was not given.
  int32_t num_drawn() const { return static_cast<int32_t>(generated.size()) - num_given; }
  // Counts an expected token too, once a plan has a row for it, and proposed ones in flight.
  int32_t num_computed() const { return tables.num_tokens(); }
  int32_t num_remaining() const { return num_tokens() + num_expected - num_computed(); }
  // Whether the steps in flight end its answer whatever they draw, or leave out a draw of it.
  // REQUIRES: it runs, and what they draw is counted (Scheduler::Expect).
  bool ends() const { return num_remaining() == 0 && num_expected == 0 && !is_awaited && !is_over; }
  // The token at `position`, which may be a proposed one; kNoToken if it is expected but not drawn
  // yet.
  inline TokenId TokenAt(int32_t position) const;
};

struct RequestState {
  GenerationRequest request;
  OrderKey key;
  int32_t max_context = 0;         // places of each branch
  ContextLayout layout;            // of its tokens; the prompt has kNoToken in its holes
  int32_t flow = 0;                // flow of the waiting queue
  bool overdue = false;            // has waited so long that it goes ahead of all others
  std::vector<Sequence> branches;  // [num_branches]; never resized
  bool forked = false;             // the branches have their own pages and tokens
  bool started = false;            // has been in a step
  bool paused = false;             // gets no rows (Scheduler::Pause)
  int64_t arrival_us = 0;
  int64_t queued_us = -1;  // -1 once it is reported
  int32_t live_branches = 0;
  int32_t cached_tokens = -1;         // taken from the prefix cache when first admitted
  std::vector<uint64_t> page_hashes;  // of the prompt's full pages, chained
  RequestId leader{};                 // computes the first `leader_pages` of them, if > 0
  int32_t leader_pages = 0;
  int32_t num_pooled = 0;      // leading prompt positions whose hidden states are pooled
  int32_t num_scored = 0;      // prompt positions whose score is reported or in flight
  int32_t num_prefetched = 0;  // leading pages of its adapter that need no prefetching any more

  int32_t num_prompt() const { return static_cast<int32_t>(request.prompt.size()); }
  bool has_workers() const { return !request.workers.empty(); }
};

// The requests that have not ended.
using RequestMap = absl::flat_hash_map<RequestId, std::unique_ptr<RequestState>>;

inline int32_t Sequence::num_tokens() const {
  return request->num_prompt() + static_cast<int32_t>(generated.size());
}

inline TokenId Sequence::TokenAt(int32_t position) const {
  const int32_t num_prompt = request->num_prompt();
  if (position < num_prompt) return request->request.prompt[position];
  if (position < num_tokens()) return generated[position - num_prompt];
  const auto proposed = static_cast<size_t>(position - num_tokens());
  return num_drafted > 0 && proposed < draft.size() ? draft[proposed] : engine::kNoToken;
}

// The context that a branch leaves. REQUIRES: its request says so.
inline ContextId ContextOf(const Sequence& sequence) {
  return ContextId{static_cast<uint64_t>(sequence.request->request.keep) +
                   static_cast<uint64_t>(sequence.branch)};
}

// Branches that will run when this sequence is past its prompt.
inline int32_t NumSlots(const Sequence& sequence) {
  const RequestState& request = *sequence.request;
  if (request.forked) return 1;
  return request.has_workers() ? static_cast<int32_t>(request.branches.size())
                               : request.live_branches;
}

// Whether the sequence counts where running sequences are shared out among clients and calls.
// Workers count once, because they get their places, and lose them, all at a time.
inline bool CountsAsOne(const Sequence& sequence) {
  const RequestState& request = *sequence.request;
  return !request.has_workers() || !request.forked || sequence.branch == 0;
}

// The order of service: requests by their key, branches of a request by number.
struct MoreUrgent {
  bool operator()(const Sequence* a, const Sequence* b) const {
    if (a->request->key != b->request->key) return a->request->key < b->request->key;
    return a->branch < b->branch;
  }
};

}  // namespace heddle::scheduler
