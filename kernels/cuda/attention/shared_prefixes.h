// Which sequences of a step have contexts that begin with the same pages: a system prompt that the
// prefix cache holds once, or branches of one request. Attention can read those pages once for all
// of them.
//
// Only page numbers are compared, so that nothing is said of contexts that are equal in content but
// lie on pages of their own.
// Sources: Juravsky et al., "Hydragen", 2024; Ye et al., "Cascade Inference", 2024.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/batch.h"

namespace heddle::kernels::cuda {

struct SharedPrefix {
  std::vector<int32_t> sequences;  // two or more, in the order of the batch
  int32_t spans = 0;               // the first of each, of equal pages and lengths
  int32_t keys = 0;                // what those hold; before the rows of every sequence
};

// Among `candidates`, in the order of the batch, the groups that share `min_keys` keys or more; a
// sequence is in one group at most. Where a few share more than all do, the division is taken by
// which fewer keys are read. Cost: a sort of the candidates by one page number each; and where
// pages are equal, a comparison of all spans that are.
std::vector<SharedPrefix> FindSharedPrefixes(const HostBatch& batch,
                                             std::span<const int32_t> candidates, int32_t min_keys);

}  // namespace heddle::kernels::cuda
