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

}  // namespace heddle::kernels
