// What the scheduler knows of a request and of its branches while they live. Plain data; the
// scheduler is the only one that edits it.
#pragma once

#include <cstdint>
#include <vector>

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
  kFinished,
};

// One branch of a request: the prompt, what was drawn after it, and the pages of that part of both
// whose keys and values are computed (or will be when the planned step is done).
struct Sequence {
  SequenceId id{};
  int32_t branch = 0;
  RequestState* request = nullptr;
  Phase phase = Phase::kUnforked;
  bool begun = false;            // the executor has heard of it
  int32_t num_planned = 0;       // tokens of it in the step being planned
  int32_t num_recompute = 0;     // positions that had been computed before a preemption
  int32_t num_hashed_pages = 0;  // leading pages that are in the prefix cache; -1: none will be
  int32_t num_expected = 0;  // 1: a step in flight draws a token that the plan behind it counts on
  int32_t expected_sample = 0;  // which of that step's samples it is
  // A step in flight samples behind a token that others have turned out to follow, forced.
  bool sample_is_void = false;
  float forcing = 0;   // how often, lately, its grammar has forced tokens behind a draw; 0 to 1
  uint64_t chain = 0;  // hash of these pages
  std::vector<TokenId> generated;
  KvTables tables;
  // Of WaitingQueue while it waits: since when, and its neighbours by that time.
  int64_t waiting_since_us = 0;
  Sequence* waits_after = nullptr;
  Sequence* waits_before = nullptr;

  inline int32_t num_tokens() const;  // prompt and generated
  // Counts an expected token too, once a plan has a row for it.
  int32_t num_computed() const { return tables.num_tokens(); }
  int32_t num_remaining() const { return num_tokens() + num_expected - num_computed(); }
  // ~expected_sample (engine/step.h) for the position of an expected token.
  inline TokenId TokenAt(int32_t position) const;
};

struct RequestState {
  GenerationRequest request;
  OrderKey key;
  int32_t flow = 0;                // of the waiting queue
  bool overdue = false;            // has waited for so long that it goes ahead of all others
  std::vector<Sequence> branches;  // [num_branches]; never resized
  bool forked = false;             // the branches have their own pages and tokens
  bool started = false;            // has been in a step
  int64_t arrival_us = 0;
  int64_t queued_us = -1;  // until it is reported
  int32_t live_branches = 0;
  int32_t cached_tokens = -1;         // taken from the prefix cache when first admitted
  std::vector<uint64_t> page_hashes;  // of the prompt's full pages, chained
  RequestId leader{};                 // computes the first `leader_pages` of them, if > 0
  int32_t leader_pages = 0;
  int32_t num_pooled = 0;  // leading prompt positions whose hidden states are pooled
  int32_t num_scored = 0;  // prompt positions whose score is reported or under way

  int32_t num_prompt() const { return static_cast<int32_t>(request.prompt.size()); }
};

inline int32_t Sequence::num_tokens() const {
  return request->num_prompt() + static_cast<int32_t>(generated.size());
}

inline TokenId Sequence::TokenAt(int32_t position) const {
  const int32_t num_prompt = request->num_prompt();
  if (position < num_prompt) return request->request.prompt[position];
  return position < num_tokens() ? generated[position - num_prompt] : ~expected_sample;
}

// Branches that will run when this sequence is past its prompt.
inline int32_t NumSlots(const Sequence& sequence) {
  return sequence.request->forked ? 1 : sequence.request->live_branches;
}

// The order of service: requests by their key, the branches of one by number.
struct MoreUrgent {
  bool operator()(const Sequence* a, const Sequence* b) const {
    if (a->request->key != b->request->key) return a->request->key < b->request->key;
    return a->branch < b->branch;
  }
};

}  // namespace heddle::scheduler
