// The slices of a step's sequences (kernels/recurrence_slices.h), for kernels that keep snapshots
// in pages. They lie in the scratch of a call, because an op allocates nothing.
// Thread-safety: not changed once made, so that all threads of an op read it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/batch.h"
#include "kernels/recurrence_slices.h"

namespace heddle::kernels::cpu {

class StepSlices {
 public:
  // Bytes that the slices of a batch take: a multiple of 64, so that what lies behind is aligned.
  static int64_t Bytes(const HostBatch& batch) {
    constexpr int64_t kAlignment = 64;
    const int64_t bytes = batch.n_seqs() * int64_t{sizeof(RecurrenceSlice)};
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  // `memory` [Bytes(batch)] bytes, which outlives the object, as does the batch.
  StepSlices(const HostBatch& batch, int32_t page_tokens, void* memory)
      : batch_(batch), slices_(static_cast<RecurrenceSlice*>(memory)) {
    for (int32_t seq = 0; seq < batch.n_seqs(); ++seq) {
      slices_[seq] = SliceOf(batch, page_tokens, seq);
    }
  }

  // By sequence.
  std::span<const RecurrenceSlice> all() const {
    return {slices_, static_cast<size_t>(batch_.n_seqs())};
  }
  const RecurrenceSlice& operator[](int64_t seq) const { return slices_[seq]; }
  // The slice that row t of the batch is in; O(log n_seqs).
  const RecurrenceSlice& OfRow(int64_t t) const {
    const auto next = std::upper_bound(batch_.q_begin.begin(), batch_.q_begin.end(), t);
    return slices_[next - batch_.q_begin.begin() - 1];
  }

 private:
  const HostBatch& batch_;
  RecurrenceSlice* slices_;  // [n_seqs]
};

}  // namespace heddle::kernels::cpu
