// The device's view of a step: rows of all sequences concatenated, and what attention and KV
// writes need to know of them. Built by the engine from a StepPlan on the host; Device::Plan copies
// it to the device once per step.
//
// Sequence s owns rows [q_begin[s], q_begin[s+1]) and spans [span_begin[s], span_begin[s+1]). Its
// row i of n attends to the first context_len[s] - n + 1 + i positions of its span list: the spans
// count this step's rows too, as their last n positions.
#pragma once

#include <cstdint>
#include <span>

namespace heddle::kernels {

// The layers of a model may be in several groups, each of which sees spans of its own
// (KvCacheView::group): then a step has as many span lists, and slots, for the same rows.
struct BatchSpans {
  std::span<const int64_t> kv_slot;  // as in HostBatch, of one more group
  std::span<const int32_t> span_begin;
  std::span<const int32_t> span_page;
  std::span<const int32_t> span_tokens;
  std::span<const int32_t> context_len;
};

inline constexpr int32_t kMaxTreeRows = 64;

struct HostBatch {
  // [n_tokens]. ~i, which is negative: what draw i of the step launched before brings, counted over
  // all its calls of Sample; only with Device::max_in_flight() > 1.
  std::span<const int32_t> token_ids;
  std::span<const int32_t> positions;    // [n_tokens], for RoPE and learned positions
  std::span<const int64_t> kv_slot;      // [n_tokens] page * page_tokens + offset
  std::span<const int32_t> q_begin;      // [n_seqs + 1] rows
  std::span<const int32_t> span_begin;   // [n_seqs + 1] into span_page
  std::span<const int32_t> span_page;    // [n_spans]
  std::span<const int32_t> span_tokens;  // [n_spans] valid positions, >= 1
  std::span<const int32_t> context_len;  // [n_seqs] sum of span_tokens
  std::span<const int32_t> logit_rows;   // [n_logit_rows] rows whose logits are wanted
  // [n_tokens], or empty: no trees. Where a sequence's rows are a tree of drafts, in order of depth
  // with their positions, bit j of a row says that it sees row j of that sequence, its own bit is
  // set, and there are at most kMaxTreeRows rows. 0 for rows of other sequences. A layer's window
  // counts back from the row's position and bounds only what came before the tree.
  // Source: Cai et al., "Medusa", 2024 (tree attention).
  std::span<const uint64_t> tree_mask = {};
  // [n_tokens] the adapter of each row (kernels/adapters.h), -1: none; or empty: none of any row.
  std::span<const int32_t> adapter_slot = {};
  // Of groups 1, 2, ...; the spans above are those of group 0.
  std::span<const BatchSpans> more_groups = {};

  int32_t n_tokens() const { return static_cast<int32_t>(token_ids.size()); }
  int32_t n_seqs() const { return static_cast<int32_t>(context_len.size()); }
  int32_t n_groups() const { return static_cast<int32_t>(more_groups.size()) + 1; }
  bool IsTree(int32_t seq) const { return !tree_mask.empty() && tree_mask[q_begin[seq]] != 0; }

  // The batch as the layers of a group see it: that group's spans in the place of group 0's.
  HostBatch OfGroup(int32_t group) const {
    HostBatch batch = *this;
    if (group == 0) return batch;
    const BatchSpans& spans = more_groups[static_cast<size_t>(group) - 1];
    batch.kv_slot = spans.kv_slot;
    batch.span_begin = spans.span_begin;
    batch.span_page = spans.span_page;
    batch.span_tokens = spans.span_tokens;
    batch.context_len = spans.context_len;
    return batch;
  }
};

}  // namespace heddle::kernels
