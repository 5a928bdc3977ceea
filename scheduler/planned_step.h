// The step being planned: the parts of the scheduler fill it in one after the other before it is
// written into a StepPlan. Plain data; its memory is kept from step to step.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/step.h"
#include "scheduler/scheduler_types.h"
#include "scheduler/sequence.h"

namespace heddle::scheduler {

struct PlannedStep {
  int64_t now_us = 0;
  bool is_ahead = false;      // planned before the tokens of the steps in flight are known
  bool needs_tokens = false;  // somebody has to be preempted: the next plan must know the tokens

  int32_t decodes = 0;                 // running sequences with one token to run
  int32_t held = 0;                    // running sequences whose clients are held
  std::vector<Sequence*> decoding;     // those that run one in this step
  std::vector<Sequence*> prompts;      // running sequences with more tokens to run
  std::vector<Sequence*> paused;       // running sequences that get nothing
  std::vector<int32_t> wants, shares;  // [prompts] tokens that could run, and that do
  std::vector<Sequence*> forks;        // branches that get pages of their own with this step
  int32_t slots = 0;                   // branches of the running sequences, also those to be forked
  AheadWish ahead;                     // of the drafter beside the model
  int64_t reserved_pages = 0;          // pages that running sequences need for their tokens

  std::vector<StepNote> notes;  // in the order of the decisions
  engine::StepLocals locals;

  void Begin(int64_t at_us) {
    now_us = at_us;
    notes.clear();
    locals.grammars.clear();
    locals.adapters.clear();
    forks.clear();
  }
  void Note(const Sequence& sequence, StepNote::Kind kind, int32_t tokens) {
    notes.push_back({sequence.request->request.id, sequence.branch, kind, tokens});
  }
};

}  // namespace heddle::scheduler
