// Working memory of Ops::SelectPositions (kernels/selection.h) on the CPU, which takes it, and for
// plans of memory (engine/model/capacity.h). Thread-safety: pure functions.
#pragma once

#include <algorithm>
#include <cstdint>

namespace heddle::kernels {

// Scores that are kept at a time, 16 MiB: rows of long contexts are handled in several passes.
inline constexpr int64_t kMostScores = int64_t{1} << 22;

// The most scores, of 4 bytes, that a call with `rows` rows keeps, if the longest context that a
// row sees has `context` positions: at least one row's.
constexpr int64_t KeptScores(int64_t rows, int64_t context) {
  return std::max(context, std::min(rows * context, kMostScores));
}

// Places of a context that a thread scores at a time, with their keys turned.
inline constexpr int32_t kScoredPlaces = 512;

// Numbers of 4 bytes that a thread keeps: the keys of kScoredPlaces and a row of packed queries, or
// as many as the scores of a row over `context` positions, of which it chooses.
constexpr int64_t SelectionThreadNumbers(int32_t n_heads, int32_t head_dim, int64_t context,
                                         int32_t top_k) {
  constexpr int64_t kUnit = 16;
  const int64_t dim = (head_dim + kUnit - 1) / kUnit * kUnit;
  const int64_t pairs = int64_t{n_heads} * ((head_dim + 1) / 2);
  const int64_t most = std::max(kScoredPlaces * dim + pairs, context + top_k + 1);
  return (most + kUnit - 1) / kUnit * kUnit;
}

}  // namespace heddle::kernels
