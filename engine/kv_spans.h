// The places of keys and values: a sequence's context as a list of spans over pages, and the
// operations on whole pages. Plain data.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/ids.h"

namespace heddle::engine {

// `num_tokens` valid positions at the start of `page`. A sequence's context is a list of these.
struct KvSpan {
  PageId page;
  int32_t num_tokens;
};

// `num_tokens` positions of a context, one behind the other in its list of spans, whose keys are
// those of positions from `position` on: where positions are not places in the list. Rows see them
// as if their own positions were larger by `turn` (kernels::ContextPiece).
struct ContextPiece {
  int32_t num_tokens = 0;
  Position position = 0;
  int32_t turn = 0;
};

// The place of one new token's key and value.
struct KvSlot {
  PageId page;
  int32_t offset;  // in [0, page_tokens)
};

// Slots and spans of a group of layers other than the first. Layers are grouped by how far their
// rows see, and each group has its own list of spans per sequence: a page holds page_tokens
// positions of one group. Group 0 sees furthest; its spans and slots are those of the plan itself.
struct GroupSpans {
  struct Range {
    int32_t span_begin = 0;  // spans [span_begin, span_begin + num_spans) of the group
    int32_t num_spans = 0;
    int32_t context_tokens = 0;  // sum over its spans
    uint64_t list_version = 0;   // as SequenceSlice::list_version
  };
  std::vector<KvSlot> kv_slots;     // [n_tokens]
  std::vector<KvSpan> spans;        // [sum of num_spans]
  std::vector<Range> ranges;        // [n_seqs]
  std::vector<KvSlot> ahead_slots;  // as StepPlan::ahead_slots

  // Empties the lists and keeps their capacity.
  void Clear() {
    kv_slots.clear();
    spans.clear();
    ranges.clear();
    ahead_slots.clear();
  }
};

// Copies the first `num_tokens` positions of a page, before the step's forward.
struct PageCopy {
  PageId from;
  PageId to;
  int32_t num_tokens;
};

// Moves the whole content of a page to a slot of the host's tier, or back. Slots are dense in [0,
// ExecutorLimits::num_host_pages).
struct PageSwap {
  PageId page;
  int32_t slot;
};

}  // namespace heddle::engine
