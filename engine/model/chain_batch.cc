#include "engine/model/chain_batch.h"

#include <algorithm>

#include "base/check.h"

namespace heddle::engine {

SlicePages PagesOfSlice(const StepPlan& plan, int32_t slice, int32_t slot_begin, int32_t num_ahead,
                        int32_t group) {
  const SequenceSlice& own = plan.sequences[static_cast<size_t>(slice)];
  const auto ahead_begin = static_cast<size_t>(slot_begin);
  const auto ahead_count = static_cast<size_t>(num_ahead);
  if (group == 0) {
    return {.spans = std::span(plan.spans)
                         .subspan(static_cast<size_t>(own.span_begin),
                                  static_cast<size_t>(own.num_spans)),
            .ahead = std::span(plan.ahead_slots).subspan(ahead_begin, ahead_count),
            .context_tokens = own.context_tokens};
  }
  const GroupSpans& spans = plan.more_groups[static_cast<size_t>(group) - 1];
  const GroupSpans::Range& range = spans.ranges[static_cast<size_t>(slice)];
  return {.spans = std::span(spans.spans)
                       .subspan(static_cast<size_t>(range.span_begin),
                                static_cast<size_t>(range.num_spans)),
          .ahead = std::span(spans.ahead_slots).subspan(ahead_begin, ahead_count),
          .context_tokens = range.context_tokens,
          .missing = own.context_tokens - range.context_tokens};
}

int32_t MissingInFront(const StepPlan& plan, int32_t slice) {
  const SequenceSlice& own = plan.sequences[static_cast<size_t>(slice)];
  int32_t missing = 0;
  for (const GroupSpans& group : plan.more_groups) {
    missing = std::max(
        missing, own.context_tokens - group.ranges[static_cast<size_t>(slice)].context_tokens);
  }
  return missing;
}

void ChainBatch::Begin(const StepPlan& plan, int32_t page_tokens) {
  page_tokens_ = page_tokens;
  token_ids_.clear();
  positions_.clear();
  masks_.clear();
  q_begin_.assign(1, 0);
  groups_.resize(plan.more_groups.size() + 1);
  for (Group& group : groups_) {
    group.kv_slot.clear();
    group.span_begin.assign(1, 0);
    group.span_page.clear();
    group.span_tokens.clear();
    group.context_len.clear();
  }
}

// The first `context` positions of the slice and of the slots ahead of it.
void ChainBatch::AddSpans(const SlicePages& pages, int32_t context, Group* group) {
  const size_t first = group->span_page.size();
  for (const KvSpan& span : pages.spans) {
    if (context == 0) return;
    group->span_page.push_back(Index(span.page));
    group->span_tokens.push_back(std::min(span.num_tokens, context));
    context -= group->span_tokens.back();
  }
  for (int32_t i = 0; i < context; ++i) {
    const KvSlot& slot = pages.ahead[static_cast<size_t>(i)];
    const bool goes_on =
        group->span_page.size() > first && group->span_page.back() == Index(slot.page);
    if (goes_on) {
      ++group->span_tokens.back();
    } else {
      group->span_page.push_back(Index(slot.page));
      group->span_tokens.push_back(1);
    }
  }
}

void ChainBatch::Add(const StepPlan& plan, const Chain& chain, int32_t begin,
                     std::span<const TokenId> tokens) {
  const SequenceSlice& slice = plan.sequences[static_cast<size_t>(chain.slice)];
  const int32_t end = begin + static_cast<int32_t>(tokens.size());
  const Position last =
      plan.positions[static_cast<size_t>(slice.token_begin) + slice.num_tokens - 1];
  const Position first = last - (slice.context_tokens - 1) + begin;
  for (size_t i = 0; i < tokens.size(); ++i) {
    token_ids_.push_back(tokens[i]);
    positions_.push_back(first + static_cast<Position>(i));
  }
  q_begin_.push_back(n_rows());
  for (size_t g = 0; g < groups_.size(); ++g) {
    Group& group = groups_[g];
    const SlicePages pages =
        PagesOfSlice(plan, chain.slice, chain.slot_begin, chain.num_slots, static_cast<int32_t>(g));
    const int32_t context = end - pages.missing;
    HEDDLE_CHECK(begin >= pages.missing, "a drafter runs positions that are given back");
    AddSpans(pages, context, &group);
    ForEachSlot(pages, begin - pages.missing, context, [&](int32_t, KvSlot slot) {
      group.kv_slot.push_back(int64_t{Index(slot.page)} * page_tokens_ + slot.offset);
    });
    group.span_begin.push_back(static_cast<int32_t>(group.span_page.size()));
    group.context_len.push_back(context);
  }
}

void ChainBatch::AddBlock(const StepPlan& plan, const Chain& chain, int32_t begin,
                          std::span<const TokenId> tokens) {
  HEDDLE_CHECK(tokens.size() <= kernels::kMaxTreeRows,
               "a block has more rows than a mask has bits");
  Add(plan, chain, begin, tokens);
  masks_.resize(token_ids_.size(), ~uint64_t{0} >> (kernels::kMaxTreeRows - tokens.size()));
}

kernels::HostBatch ChainBatch::View(std::span<const int32_t> logit_rows) {
  more_groups_.clear();
  for (size_t g = 1; g < groups_.size(); ++g) {
    const Group& group = groups_[g];
    more_groups_.push_back({.kv_slot = group.kv_slot,
                            .span_begin = group.span_begin,
                            .span_page = group.span_page,
                            .span_tokens = group.span_tokens,
                            .context_len = group.context_len});
  }
  const Group& first = groups_[0];
  return {.token_ids = token_ids_,
          .positions = positions_,
          .kv_slot = first.kv_slot,
          .q_begin = q_begin_,
          .span_begin = first.span_begin,
          .span_page = first.span_page,
          .span_tokens = first.span_tokens,
          .context_len = first.context_len,
          .logit_rows = logit_rows,
          .tree_mask = masks_,
          .more_groups = more_groups_};
}

}  // namespace heddle::engine
