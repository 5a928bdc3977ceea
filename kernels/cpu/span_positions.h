// Where the spans of a batch begin in their sequences.
// Thread-safety: pure function.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/batch.h"

namespace heddle::kernels::cpu {

// Sets (*positions)[i] to the first place of span i in its sequence, of all spans of the sequences.
inline void PlaceSpans(const HostBatch& batch, std::vector<int32_t>* positions) {
  positions->assign(static_cast<size_t>(batch.span_begin[batch.n_seqs()]), 0);
  for (int32_t s = 0; s < batch.n_seqs(); ++s) {
    int32_t position = 0;
    for (int32_t i = batch.span_begin[s]; i < batch.span_begin[s + 1]; ++i) {
      (*positions)[static_cast<size_t>(i)] = position;
      position += batch.span_tokens[i];
    }
  }
}

}  // namespace heddle::kernels::cpu
