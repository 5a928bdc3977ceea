#include "kernels/cpu/attention/chosen_rows.h"

#include "base/check.h"

namespace heddle::kernels::cpu {

void ChosenRows::Add(int32_t seq, int32_t end, int32_t context_len, const int32_t* places) {
  const bool is_first = sequence_.empty() || sequence_.back() != seq;
  sequence_.push_back(seq);
  places_.push_back(places);
  q_begin_.push_back(end);
  part_span_begin_.back() = span_begin_[static_cast<size_t>(is_first ? seq : seq + 1)];
  part_span_begin_.push_back(span_begin_[static_cast<size_t>(seq) + 1]);
  context_len_.push_back(context_len);
}

void ChosenRows::Divide(const HostBatch& batch, const ChosenPlaces& chosen) {
  HEDDLE_CHECK(batch.piece_begin.empty(), "chosen positions of contexts with pieces");
  span_begin_ = batch.span_begin;
  sequence_.clear();
  places_.clear();
  context_len_.clear();
  q_begin_.assign(1, 0);
  part_span_begin_.assign(1, 0);
  tree_mask_.assign(batch.tree_mask.begin(), batch.tree_mask.end());
  for (int32_t s = 0; s < batch.n_seqs(); ++s) {
    const int32_t end = batch.q_begin[s + 1];
    int32_t row = batch.q_begin[s];
    // The rows before the first one that has a list.
    while (row < end && chosen.count(row) == 0) ++row;
    if (row > batch.q_begin[s]) Add(s, row, batch.context_len[s] - (end - row), nullptr);
    for (; row < end; ++row) {
      HEDDLE_CHECK(chosen.count(row) > 0, "a row without a list behind one that has one");
      if (!tree_mask_.empty()) tree_mask_[static_cast<size_t>(row)] = 0;
      Add(s, row + 1, chosen.count(row), chosen.places(row));
    }
  }
  view_ = batch;
  view_.q_begin = q_begin_;
  view_.span_begin = part_span_begin_;
  view_.context_len = context_len_;
  view_.tree_mask = tree_mask_;
}

}  // namespace heddle::kernels::cpu
