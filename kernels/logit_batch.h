// The logit rows of a batch as a batch of their own (Ops::NarrowToLogitRows).
//
// Borrows the batch that it is made of, whose spans it has; keeps its memory from step to step.
// Thread-safety: none.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/batch.h"

namespace heddle::kernels {

class LogitBatch {
 public:
  // Whether the logit rows are the last rows of their sequences, each of them once and in order,
  // and the batch has neither trees nor pieces. Otherwise all rows take all layers; so does a step
  // in which a pooled sequence lies before a drawn one, since rows of pools follow those of draws.
  static bool IsMadeOf(const HostBatch& batch);

  // Valid until the next Make, and as long as `batch`. Its kv_slot is not that of its rows: they
  // may write nothing. REQUIRES: IsMadeOf(batch).
  const HostBatch& Make(const HostBatch& batch);

 private:
  std::vector<int32_t> q_begin_;     // [n_seqs + 1]
  std::vector<int32_t> positions_;   // [rows]
  std::vector<int32_t> token_ids_;   // [rows]
  std::vector<int32_t> slots_;       // [rows] of adapters, or empty
  std::vector<int32_t> logit_rows_;  // [rows] all of them
  HostBatch view_;
};

}  // namespace heddle::kernels
