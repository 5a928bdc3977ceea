// For hand-written plans (benchmarks, tests) that keep the whole context in every group of layers:
// the pages of each group lie behind those of the group before. The scheduler does not do so.
#pragma once

#include <cstdint>

#include "engine/step.h"

namespace heddle::engine {

// Writes groups 1 to num_groups - 1 of `plan` as copies of group 0, each on pages that lie
// `num_pages` behind those of the group before. REQUIRES: group 0 uses pages below num_pages.
inline void AddWholeGroups(int32_t num_groups, int32_t num_pages, StepPlan* plan) {
  plan->more_groups.resize(static_cast<size_t>(num_groups) - 1);
  int32_t behind = 0;
  for (GroupSpans& group : plan->more_groups) {
    behind += num_pages;
    group.Clear();
    for (const KvSlot& slot : plan->kv_slots) {
      group.kv_slots.push_back({PageId{Index(slot.page) + behind}, slot.offset});
    }
    for (const KvSpan& span : plan->spans) {
      group.spans.push_back({PageId{Index(span.page) + behind}, span.num_tokens});
    }
    for (const SequenceSlice& slice : plan->sequences) {
      group.ranges.push_back({slice.span_begin, slice.num_spans, slice.context_tokens});
    }
  }
}

}  // namespace heddle::engine
