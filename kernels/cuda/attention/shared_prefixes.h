// Finds sequences of a step whose contexts begin with the same pages: a system prompt that the
// prefix cache holds once, or branches of one request. Attention can read those pages once for all
// of them.
//
// Only page numbers are compared: contexts with equal content on different pages do not count.
// Sources: Juravsky et al., "Hydragen", 2024; Ye et al., "Cascade Inference", 2024.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/batch.h"

namespace heddle::kernels::cuda {

struct SharedPrefix {
  std::vector<int32_t> sequences;  // two or more, in the order of the batch
  int32_t spans = 0;               // leading spans with equal pages and lengths
  int32_t keys = 0;                // keys of those; all are before the rows of every sequence
};

// Groups the `candidates`, in the order of the batch, that share `min_keys` keys or more; a
// sequence is in one group at most. If a few share more than all do, the division that reads fewer
// keys is taken. Cost: a sort of the candidates by one page number each, and a comparison of all
// spans whose pages are equal.
std::vector<SharedPrefix> FindSharedPrefixes(const HostBatch& batch,
                                             std::span<const int32_t> candidates, int32_t min_keys);

}  // namespace heddle::kernels::cuda
