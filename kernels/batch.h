// The device's view of a step: the rows of all sequences concatenated, and the data that attention
// and KV writes need about them. The engine builds it from a StepPlan on the host; Device::Plan
// copies it to the device once per step.
//
// Sequence s owns rows [q_begin[s], q_begin[s+1]) and spans [span_begin[s], span_begin[s+1]). Its
// row i of n attends to the first context_len[s] - n + 1 + i positions of its span list: the last n
// positions of the spans are this step's rows.
#pragma once

#include <cstdint>
#include <span>

namespace heddle::kernels {

// The layers of a model may be in several groups, each with its own spans (KvCacheView::group): a
// step then has as many lists of spans and slots for the same rows.
struct BatchSpans {
  std::span<const int64_t> kv_slot;  // as in HostBatch, for one further group
  std::span<const int32_t> span_begin;
  std::span<const int32_t> span_page;
  std::span<const int32_t> span_tokens;
  std::span<const int32_t> context_len;
};

inline constexpr int32_t kMaxTreeRows = 64;

// Consecutive positions of a sequence's span list whose keys were computed as those of positions
// `position`, `position` + 1 and so on. A row sees them as if its own position were larger by
// `turn`: so far its query is rotated further (AttentionArgs::rotation), and from there a window
// counts back. Sources: Yang et al., "Multiverse", 2025 (branches side by side begin at one
// position); Rodionov et al., "Hogwild! Inference", 2025 (blocks of other workers).
struct ContextPiece {
  int32_t num_tokens = 0;
  int32_t position = 0;
  int32_t turn = 0;
};

struct HostBatch {
  std::span<const int32_t> token_ids;    // [n_tokens]
  std::span<const int32_t> positions;    // [n_tokens], for RoPE and learned positions
  std::span<const int64_t> kv_slot;      // [n_tokens] page * page_tokens + offset
  std::span<const int32_t> q_begin;      // [n_seqs + 1] rows
  std::span<const int32_t> span_begin;   // [n_seqs + 1] into span_page
  std::span<const int32_t> span_page;    // [n_spans]
  std::span<const int32_t> span_tokens;  // [n_spans] valid positions, >= 1
  std::span<const int32_t> context_len;  // [n_seqs] sum of span_tokens
  std::span<const int32_t> logit_rows;   // [n_logit_rows] rows whose logits are wanted
  // [n_tokens], or empty if there are no trees. If a sequence's rows are a tree of drafts, in order
  // of depth with their positions, bit j of a row says that it sees row j of that sequence. Its own
  // bit is set, and there are at most kMaxTreeRows rows. 0 for rows of other sequences. A layer's
  // window counts back from the row's position and bounds only what came before the tree.
  // Source: Cai et al., "Medusa", 2024 (tree attention).
  std::span<const uint64_t> tree_mask = {};
  // [n_tokens], or empty: token_ids has the tokens of all rows. A row with a number >= 0 runs, in
  // place of its token id, the result of the draw with that number, counted over all calls of
  // Sample of the step launched before; -1: its token id counts. Only with Device::max_in_flight()
  // > 1.
  std::span<const int32_t> draw_of_row = {};
  // [n_tokens] the adapter of each row (kernels/adapters.h), -1: none; empty if no row has one.
  std::span<const int32_t> adapter_slot = {};
  // [n_tokens] 0 or 1, Ops::AddTokenTypes; empty: all are 0.
  std::span<const int32_t> token_types = {};
  // [n_tokens] the segment of each row, Ops::AddSegments; empty: all are 0.
  std::span<const int32_t> segments = {};
  // [n_seqs + 1] into pieces, or empty: no sequence has any. A sequence with pieces is made of
  // them, in order, and its rows are in the last one. Where the window of a group has passed its
  // front, context_len is less than the sum: the first positions of the pieces are missing.
  // Sequences with pieces are no trees.
  std::span<const int32_t> piece_begin = {};
  std::span<const ContextPiece> pieces = {};
  // Groups 1, 2, ...; the spans above are those of group 0.
  std::span<const BatchSpans> more_groups = {};

  int32_t n_tokens() const { return static_cast<int32_t>(token_ids.size()); }
  int32_t n_seqs() const { return static_cast<int32_t>(context_len.size()); }
  int32_t n_groups() const { return static_cast<int32_t>(more_groups.size()) + 1; }
  std::span<const ContextPiece> PiecesOf(int32_t seq) const {
    if (piece_begin.empty()) return {};
    return pieces.subspan(static_cast<size_t>(piece_begin[seq]),
                          static_cast<size_t>(piece_begin[seq + 1] - piece_begin[seq]));
  }
  bool IsTree(int32_t seq) const { return !tree_mask.empty() && tree_mask[q_begin[seq]] != 0; }

  // The batch as the layers of a group see it: that group's spans replace those of group 0.
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
