#include "engine/model/plan_batch.h"

#include <algorithm>

#include "base/check.h"

namespace heddle::engine {

void PlanBatch::Group::Begin(std::span<const KvSlot> slots, std::span<const KvSpan> spans,
                             int32_t page_tokens) {
  kv_slot.clear();
  for (const KvSlot& slot : slots) {
    kv_slot.push_back(int64_t{Index(slot.page)} * page_tokens + slot.offset);
  }
  span_page.clear();
  span_tokens.clear();
  for (const KvSpan& span : spans) {
    span_page.push_back(Index(span.page));
    span_tokens.push_back(span.num_tokens);
  }
  span_begin.assign(1, 0);
  context_len.clear();
}

void PlanBatch::Group::AddSequence(const GroupSpans::Range& range) {
  HEDDLE_CHECK(range.span_begin == span_begin.back(), "the spans of a plan are not in row order");
  span_begin.push_back(range.span_begin + range.num_spans);
  context_len.push_back(range.context_tokens);
}

// Gives every row its sequence's slot. The array stays empty until a sequence has an adapter.
void PlanBatch::SetAdapters(const SequenceSlice& slice) {
  if (slice.adapter_slot < 0 && adapter_slot_.empty()) return;
  adapter_slot_.resize(static_cast<size_t>(slice.token_begin), -1);
  adapter_slot_.insert(adapter_slot_.end(), static_cast<size_t>(slice.num_tokens),
                       slice.adapter_slot);
}

// Does the same for masks: rows of other sequences have none.
void PlanBatch::SetMasks(const StepPlan& plan, const SequenceSlice& slice) {
  if (slice.num_masks == 0 && tree_mask_.empty()) return;
  HEDDLE_CHECK(slice.num_masks == 0 || slice.num_masks == slice.num_tokens,
               "a slice has masks for some of its rows only");
  tree_mask_.resize(static_cast<size_t>(slice.token_begin) + static_cast<size_t>(slice.num_tokens),
                    0);
  const auto from = plan.ancestor_masks.begin() + slice.mask_begin;
  std::copy(from, from + slice.num_masks, tree_mask_.begin() + slice.token_begin);
}

// Does the same for types: all are 0 up to the second text of a pair.
void PlanBatch::SetTypes(const SequenceSlice& slice) {
  if (slice.second_begin < 0 && token_types_.empty()) return;
  const int32_t first = slice.second_begin < 0 ? slice.num_tokens : slice.second_begin;
  token_types_.resize(static_cast<size_t>(slice.token_begin) + static_cast<size_t>(first), 0);
  token_types_.resize(
      static_cast<size_t>(slice.token_begin) + static_cast<size_t>(slice.num_tokens), 1);
}

// Does the same for segments: all are 0 up to the first slice with another one.
void PlanBatch::SetSegments(const SequenceSlice& slice) {
  if (slice.segment == 0 && segments_.empty()) return;
  segments_.resize(static_cast<size_t>(slice.token_begin), 0);
  segments_.resize(static_cast<size_t>(slice.token_begin) + static_cast<size_t>(slice.num_tokens),
                   slice.segment);
}

// Does the same for pieces, sequence by sequence.
void PlanBatch::SetPieces(const StepPlan& plan, const SequenceSlice& slice) {
  if (slice.num_pieces == 0 && piece_begin_.empty()) return;
  piece_begin_.resize(q_begin_.size() - 1, 0);
  for (int32_t i = slice.piece_begin; i < slice.piece_begin + slice.num_pieces; ++i) {
    const ContextPiece& piece = plan.pieces[static_cast<size_t>(i)];
    pieces_.push_back({piece.num_tokens, piece.position, piece.turn});
  }
  piece_begin_.push_back(static_cast<int32_t>(pieces_.size()));
}

kernels::HostBatch PlanBatch::Build(const StepPlan& plan, int32_t page_tokens,
                                    std::span<const int32_t> logit_rows) {
  groups_.resize(plan.more_groups.size() + 1);
  Group& first = groups_[0];
  first.Begin(plan.kv_slots, plan.spans, page_tokens);
  q_begin_.assign(1, 0);
  adapter_slot_.clear();
  tree_mask_.clear();
  token_types_.clear();
  segments_.clear();
  piece_begin_.clear();
  pieces_.clear();
  for (const SequenceSlice& slice : plan.sequences) {
    HEDDLE_CHECK(slice.token_begin == q_begin_.back(), "the slices of a plan are not in row order");
    q_begin_.push_back(slice.token_begin + slice.num_tokens);
    SetAdapters(slice);
    SetMasks(plan, slice);
    SetTypes(slice);
    SetSegments(slice);
    SetPieces(plan, slice);
    first.AddSequence({slice.span_begin, slice.num_spans, slice.context_tokens});
  }
  more_groups_.clear();
  for (size_t i = 1; i < groups_.size(); ++i) {
    const GroupSpans& from = plan.more_groups[i - 1];
    Group& group = groups_[i];
    group.Begin(from.kv_slots, from.spans, page_tokens);
    for (const GroupSpans::Range& range : from.ranges) group.AddSequence(range);
    more_groups_.push_back({.kv_slot = group.kv_slot,
                            .span_begin = group.span_begin,
                            .span_page = group.span_page,
                            .span_tokens = group.span_tokens,
                            .context_len = group.context_len});
  }
  return {.token_ids = plan.token_ids,
          .positions = plan.positions,
          .kv_slot = first.kv_slot,
          .q_begin = q_begin_,
          .span_begin = first.span_begin,
          .span_page = first.span_page,
          .span_tokens = first.span_tokens,
          .context_len = first.context_len,
          .logit_rows = logit_rows,
          .tree_mask = tree_mask_,
          .adapter_slot = adapter_slot_,
          .token_types = token_types_,
          .segments = segments_,
          .piece_begin = piece_begin_,
          .pieces = pieces_,
          .more_groups = more_groups_};
}

}  // namespace heddle::engine
