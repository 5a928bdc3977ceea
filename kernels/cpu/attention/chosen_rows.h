// A batch as attention over chosen positions sees it (ChosenPlaces): each row with a list is a
// sequence of its own, whose context is that list, and the rows before it in its sequence, which
// see everything, are another one. So such a row's sums run over blocks of its list, and it is the
// same alone and beside others.
//
// Thread-safety: none; divided by one thread before all of them read it.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/batch.h"
#include "kernels/selection.h"

namespace heddle::kernels::cpu {

class ChosenRows {
 public:
  // Keeps its memory. `batch` must live as long as what view() returns is used.
  void Divide(const HostBatch& batch, const ChosenPlaces& chosen);

  // The same rows in the same order, and all spans, with the first part of each sequence.
  const HostBatch& view() const { return view_; }
  // The places in its sequence's spans that make the context of a part; nullptr: all.
  const int32_t* PlacesOf(int32_t part) const { return places_[static_cast<size_t>(part)]; }
  // Where the spans of the part's sequence begin and end.
  int32_t SpanBegin(int32_t part) const { return span_begin_[SequenceOf(part)]; }
  int32_t SpanEnd(int32_t part) const { return span_begin_[SequenceOf(part) + 1]; }

 private:
  size_t SequenceOf(int32_t part) const {
    return static_cast<size_t>(sequence_[static_cast<size_t>(part)]);
  }
  void Add(int32_t seq, int32_t end, int32_t context_len, const int32_t* places);

  HostBatch view_;
  std::span<const int32_t> span_begin_;   // of the batch's sequences
  std::vector<int32_t> sequence_;         // [parts]
  std::vector<const int32_t*> places_;    // [parts]
  std::vector<int32_t> q_begin_;          // [parts + 1]
  std::vector<int32_t> part_span_begin_;  // [parts + 1]
  std::vector<int32_t> context_len_;      // [parts]
  std::vector<uint64_t> tree_mask_;       // [n], or empty
};

}  // namespace heddle::kernels::cpu
