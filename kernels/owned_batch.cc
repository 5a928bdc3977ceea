#include "kernels/owned_batch.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace heddle::kernels {
namespace {

absl::Status CheckSize(const char* name, size_t found, size_t expected) {
  if (found == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("batch: ", name, " has ", found, " entries, expected ", expected));
}

// Checks that `begin` rises from 0 to `total`.
absl::Status CheckOffsets(const char* name, std::span<const int32_t> begin, size_t total) {
  bool good = begin.front() == 0 && begin.back() == static_cast<int64_t>(total);
  for (size_t i = 1; i < begin.size(); ++i) good = good && begin[i - 1] <= begin[i];
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("batch: ", name, " does not rise from 0 to ", total));
}

absl::Status CheckSequence(const HostBatch& batch, size_t s) {
  int64_t tokens = 0;
  for (int32_t i = batch.span_begin[s]; i < batch.span_begin[s + 1]; ++i) {
    if (batch.span_tokens[i] < 1 || batch.span_page[i] < 0) {
      return absl::InvalidArgumentError(absl::StrCat("batch: span ", i, " is page ",
                                                     batch.span_page[i], " with ",
                                                     batch.span_tokens[i], " tokens"));
    }
    tokens += batch.span_tokens[i];
  }
  int32_t rows = batch.q_begin[s + 1] - batch.q_begin[s];
  if (tokens != batch.context_len[s] || rows > tokens) {
    return absl::InvalidArgumentError(absl::StrCat("batch: sequence ", s, " has ", rows,
                                                   " rows and context_len ", batch.context_len[s],
                                                   ", but its spans hold ", tokens));
  }
  return absl::OkStatus();
}

// Checks the spans of one group.
absl::Status CheckGroup(const HostBatch& batch) {
  size_t n_seqs = batch.context_len.size();
  HEDDLE_RETURN_IF_ERROR(CheckSize("kv_slot", batch.kv_slot.size(), batch.token_ids.size()));
  HEDDLE_RETURN_IF_ERROR(CheckSize("q_begin", batch.q_begin.size(), n_seqs + 1));
  HEDDLE_RETURN_IF_ERROR(CheckSize("span_begin", batch.span_begin.size(), n_seqs + 1));
  HEDDLE_RETURN_IF_ERROR(
      CheckSize("span_tokens", batch.span_tokens.size(), batch.span_page.size()));
  HEDDLE_RETURN_IF_ERROR(CheckOffsets("span_begin", batch.span_begin, batch.span_page.size()));
  for (size_t s = 0; s < n_seqs; ++s) HEDDLE_RETURN_IF_ERROR(CheckSequence(batch, s));
  return absl::OkStatus();
}

absl::Status CheckTrees(const HostBatch& batch) {
  if (batch.tree_mask.empty()) return absl::OkStatus();
  HEDDLE_RETURN_IF_ERROR(CheckSize("tree_mask", batch.tree_mask.size(), batch.token_ids.size()));
  for (int32_t s = 0; s < batch.n_seqs(); ++s) {
    const int32_t rows = batch.q_begin[s + 1] - batch.q_begin[s];
    const bool tree = rows > 0 && batch.IsTree(s);
    bool good = !tree || rows <= kMaxTreeRows;
    for (int32_t i = 0; good && i < rows; ++i) {
      const uint64_t mask = batch.tree_mask[batch.q_begin[s] + i];
      const bool within = rows == kMaxTreeRows || mask >> rows == 0;
      const int32_t row = batch.q_begin[s] + i;
      const bool in_order = i == 0 || batch.positions[row - 1] <= batch.positions[row];
      good = tree ? within && in_order && (mask >> i & 1) != 0 : mask == 0;
    }
    if (good) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "batch: tree_mask of sequence ", s, " with ", rows, " rows: a tree has at most ",
        kMaxTreeRows, ", in order of depth, and each sees itself and none but them"));
  }
  return absl::OkStatus();
}

absl::Status CheckAdapters(const HostBatch& batch) {
  if (batch.adapter_slot.empty()) return absl::OkStatus();
  HEDDLE_RETURN_IF_ERROR(
      CheckSize("adapter_slot", batch.adapter_slot.size(), batch.token_ids.size()));
  for (int32_t slot : batch.adapter_slot) {
    if (slot >= -1) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("batch: adapter slot ", slot, "; -1 stands for none"));
  }
  return absl::OkStatus();
}

absl::Status CheckTypes(const HostBatch& batch) {
  if (batch.token_types.empty()) return absl::OkStatus();
  HEDDLE_RETURN_IF_ERROR(
      CheckSize("token_types", batch.token_types.size(), batch.token_ids.size()));
  for (int32_t type : batch.token_types) {
    if (type == 0 || type == 1) continue;
    return absl::InvalidArgumentError(absl::StrCat("batch: token type ", type, "; 0 and 1 exist"));
  }
  return absl::OkStatus();
}

absl::Status CheckSegments(const HostBatch& batch) {
  if (batch.segments.empty()) return absl::OkStatus();
  HEDDLE_RETURN_IF_ERROR(CheckSize("segments", batch.segments.size(), batch.token_ids.size()));
  for (int32_t segment : batch.segments) {
    if (segment >= 0) continue;
    return absl::InvalidArgumentError(absl::StrCat("batch: a row of segment ", segment));
  }
  return absl::OkStatus();
}

// Checks that pieces have each sequence's positions, and those of its rows in the last one.
absl::Status CheckPieces(const HostBatch& batch) {
  if (batch.piece_begin.empty()) return absl::OkStatus();
  HEDDLE_RETURN_IF_ERROR(
      CheckSize("piece_begin", batch.piece_begin.size(), batch.context_len.size() + 1));
  HEDDLE_RETURN_IF_ERROR(CheckOffsets("piece_begin", batch.piece_begin, batch.pieces.size()));
  for (int32_t s = 0; s < batch.n_seqs(); ++s) {
    const std::span<const ContextPiece> pieces = batch.PiecesOf(s);
    if (pieces.empty()) continue;
    const int32_t rows = batch.q_begin[s + 1] - batch.q_begin[s];
    int64_t tokens = 0;
    bool good = (rows == 0 || !batch.IsTree(s)) && pieces.back().num_tokens >= rows;
    for (const ContextPiece& piece : pieces) {
      good = good && piece.num_tokens > 0 && piece.position >= 0;
      tokens += piece.num_tokens;
    }
    for (int32_t group = 0; group < batch.n_groups(); ++group) {
      const int64_t passed = tokens - batch.OfGroup(group).context_len[s];
      good = good && passed >= 0 && passed + rows <= tokens;
    }
    if (good) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("batch: the pieces of sequence ", s, " have ", tokens,
                     " positions, which are not those of its spans and its ", rows, " rows"));
  }
  return absl::OkStatus();
}

absl::Status CheckDraws(const HostBatch& batch) {
  if (batch.draw_of_row.empty()) return absl::OkStatus();
  HEDDLE_RETURN_IF_ERROR(
      CheckSize("draw_of_row", batch.draw_of_row.size(), batch.token_ids.size()));
  for (int32_t draw : batch.draw_of_row) {
    if (draw >= -1) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("batch: a row that runs draw ", draw, "; -1 stands for none"));
  }
  return absl::OkStatus();
}

absl::Status Check(const HostBatch& batch) {
  size_t n_tokens = batch.token_ids.size();
  HEDDLE_RETURN_IF_ERROR(CheckSize("positions", batch.positions.size(), n_tokens));
  HEDDLE_RETURN_IF_ERROR(CheckSize("q_begin", batch.q_begin.size(), batch.context_len.size() + 1));
  HEDDLE_RETURN_IF_ERROR(CheckOffsets("q_begin", batch.q_begin, n_tokens));
  for (int32_t group = 0; group < batch.n_groups(); ++group) {
    HEDDLE_RETURN_IF_ERROR(CheckGroup(batch.OfGroup(group)));
  }
  HEDDLE_RETURN_IF_ERROR(CheckTrees(batch));
  HEDDLE_RETURN_IF_ERROR(CheckAdapters(batch));
  HEDDLE_RETURN_IF_ERROR(CheckTypes(batch));
  HEDDLE_RETURN_IF_ERROR(CheckSegments(batch));
  HEDDLE_RETURN_IF_ERROR(CheckPieces(batch));
  HEDDLE_RETURN_IF_ERROR(CheckDraws(batch));
  for (int32_t row : batch.logit_rows) {
    if (row < 0 || row >= batch.n_tokens()) {
      return absl::InvalidArgumentError(
          absl::StrCat("batch: logit row ", row, " of ", n_tokens, " rows"));
    }
  }
  return absl::OkStatus();
}

// Number of values in the spans of all groups.
size_t NumSpanNumbers(const HostBatch& batch) {
  size_t total = 0;
  for (int32_t group = 0; group < batch.n_groups(); ++group) {
    const HostBatch spans = batch.OfGroup(group);
    total += spans.span_begin.size() + spans.span_page.size() + spans.span_tokens.size() +
             spans.context_len.size();
  }
  return total;
}

}  // namespace

std::span<const int32_t> OwnedBatch::Keep(std::span<const int32_t> source) {
  int32s_.insert(int32s_.end(), source.begin(), source.end());
  return std::span<const int32_t>(int32s_).last(source.size());
}

std::span<const int64_t> OwnedBatch::KeepSlots(std::span<const int64_t> source) {
  kv_slots_.insert(kv_slots_.end(), source.begin(), source.end());
  return std::span<const int64_t>(kv_slots_).last(source.size());
}

absl::Status OwnedBatch::Assign(const HostBatch& batch) {
  HEDDLE_RETURN_IF_ERROR(Check(batch));
  int32s_.clear();
  kv_slots_.clear();
  more_groups_.clear();
  tree_mask_.assign(batch.tree_mask.begin(), batch.tree_mask.end());
  draw_of_row_.assign(batch.draw_of_row.begin(), batch.draw_of_row.end());
  adapter_slot_.assign(batch.adapter_slot.begin(), batch.adapter_slot.end());
  token_types_.assign(batch.token_types.begin(), batch.token_types.end());
  segments_.assign(batch.segments.begin(), batch.segments.end());
  pieces_.assign(batch.pieces.begin(), batch.pieces.end());
  piece_begin_.assign(batch.piece_begin.begin(), batch.piece_begin.end());
  // Reserves first, because the spans below must not move.
  int32s_.reserve(batch.token_ids.size() + batch.positions.size() + batch.q_begin.size() +
                  batch.logit_rows.size() + NumSpanNumbers(batch));
  kv_slots_.reserve(batch.token_ids.size() * static_cast<size_t>(batch.n_groups()));
  view_ = {.token_ids = Keep(batch.token_ids),
           .positions = Keep(batch.positions),
           .kv_slot = KeepSlots(batch.kv_slot),
           .q_begin = Keep(batch.q_begin),
           .span_begin = Keep(batch.span_begin),
           .span_page = Keep(batch.span_page),
           .span_tokens = Keep(batch.span_tokens),
           .context_len = Keep(batch.context_len),
           .logit_rows = Keep(batch.logit_rows),
           .tree_mask = tree_mask_,
           .draw_of_row = draw_of_row_,
           .adapter_slot = adapter_slot_,
           .token_types = token_types_,
           .segments = segments_,
           .piece_begin = piece_begin_,
           .pieces = pieces_};
  for (const BatchSpans& group : batch.more_groups) {
    more_groups_.push_back({.kv_slot = KeepSlots(group.kv_slot),
                            .span_begin = Keep(group.span_begin),
                            .span_page = Keep(group.span_page),
                            .span_tokens = Keep(group.span_tokens),
                            .context_len = Keep(group.context_len)});
  }
  view_.more_groups = more_groups_;
  return absl::OkStatus();
}

}  // namespace heddle::kernels
