// Step plans for tests of their messages.
#pragma once

#include <cstdint>
#include <string>

#include "engine/executor.h"
#include "engine/parallel/plan_members.h"
#include "engine/step.h"

namespace heddle::engine {

// Two groups of layers, adapters, drafts, a host tier.
inline ExecutorLimits TestLimits() {
  ExecutorLimits limits;
  limits.num_pages = 100'000;
  limits.page_tokens = 16;
  limits.max_context = 100'000;
  limits.max_batch_tokens = 2048;
  limits.max_batch_seqs = 256;
  limits.num_host_pages = 50;
  limits.vocab = 128'256;
  limits.windows = {0, 512};
  limits.segments = 5;
  limits.reads_pieces = true;
  limits.max_draft_tokens = 16;
  limits.max_ahead_tokens = 8;
  limits.adapter_slots = 32;
  return limits;
}

// Appends a slice of `num_tokens` rows behind `before` positions of the same sequence. Its pages
// are neighbours from `page` on, those of group 1 the pages `shift` behind them, of which the first
// `dropped` are gone.
inline void AddSlice(uint64_t id, int32_t page, int32_t before, int32_t num_tokens, StepPlan* plan,
                     int32_t shift = 50'000, int32_t dropped = 0) {
  constexpr int32_t kPageTokens = 16;
  const auto first_row = static_cast<int32_t>(plan->token_ids.size());
  SequenceSlice slice;
  slice.id = SequenceId{id};
  slice.kind = num_tokens > 1 ? SliceKind::kPrompt : SliceKind::kDecode;
  slice.token_begin = first_row;
  slice.num_tokens = num_tokens;
  slice.span_begin = static_cast<int32_t>(plan->spans.size());
  slice.context_tokens = before + num_tokens;
  GroupSpans& group = plan->more_groups[0];
  GroupSpans::Range range;
  range.span_begin = static_cast<int32_t>(group.spans.size());
  for (int32_t at = 0; at < slice.context_tokens; at += kPageTokens, ++page) {
    const int32_t count = std::min(kPageTokens, slice.context_tokens - at);
    plan->spans.push_back({PageId{page}, count});
    ++slice.num_spans;
    for (int32_t i = std::max(before - at, 0); i < count; ++i) {
      plan->token_ids.push_back((at + i) * 37 % 120'000);
      plan->positions.push_back(at + i);
      plan->kv_slots.push_back({PageId{page}, i});
      group.kv_slots.push_back({PageId{page + shift}, i});
    }
    if (at / kPageTokens < dropped) continue;
    group.spans.push_back({PageId{page + shift}, count});
    ++range.num_spans;
    range.context_tokens += count;
  }
  group.ranges.push_back(range);
  plan->sequences.push_back(slice);
  plan->samples.push_back({slice.id, first_row + num_tokens - 1, before + num_tokens});
}

inline StepPlan EmptyPlan(uint64_t step) {
  StepPlan plan;
  plan.step = step;
  plan.more_groups.resize(1);
  return plan;
}

}  // namespace heddle::engine
