#include "kernels/logit_batch.h"

#include <numeric>

namespace heddle::kernels {

bool LogitBatch::IsMadeOf(const HostBatch& batch) {
  if (!batch.tree_mask.empty() || !batch.pieces.empty()) return false;
  size_t next = 0;
  const std::span<const int32_t> rows = batch.logit_rows;
  for (int32_t s = 0; s < batch.n_seqs(); ++s) {
    const int32_t begin = batch.q_begin[s], end = batch.q_begin[s + 1];
    if (next == rows.size() || rows[next] >= end) continue;
    for (int32_t row = rows[next]; row < end; ++row, ++next) {
      if (next == rows.size() || rows[next] != row || row < begin) return false;
    }
  }
  return next == rows.size();
}

const HostBatch& LogitBatch::Make(const HostBatch& batch) {
  q_begin_.assign(1, 0);
  positions_.clear();
  token_ids_.clear();
  slots_.clear();
  size_t next = 0;
  for (int32_t s = 0; s < batch.n_seqs(); ++s) {
    for (; next < batch.logit_rows.size() && batch.logit_rows[next] < batch.q_begin[s + 1];
         ++next) {
      const auto row = static_cast<size_t>(batch.logit_rows[next]);
      positions_.push_back(batch.positions[row]);
      token_ids_.push_back(batch.token_ids[row]);
      if (!batch.adapter_slot.empty()) slots_.push_back(batch.adapter_slot[row]);
    }
    q_begin_.push_back(static_cast<int32_t>(next));
  }
  logit_rows_.resize(next);
  std::iota(logit_rows_.begin(), logit_rows_.end(), 0);
  view_ = batch;
  view_.token_ids = token_ids_;
  view_.positions = positions_;
  view_.q_begin = q_begin_;
  view_.logit_rows = logit_rows_;
  view_.adapter_slot = slots_;
  view_.draw_of_row = {};
  view_.token_types = {};
  view_.segments = {};
  return view_;
}

}  // namespace heddle::kernels
