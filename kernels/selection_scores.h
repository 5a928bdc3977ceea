// Working memory of Ops::SelectPositions (kernels/selection.h) on the CPU, for plans of memory.
#pragma once

#include <algorithm>
#include <cstdint>

namespace heddle::kernels {

// Scores that are kept at a time, 16 MiB: rows of long contexts are handled in several passes.
inline constexpr int64_t kMostScores = int64_t{1} << 22;

// The most scores, of 4 bytes, that a call with `rows` rows of `context` positions keeps: at least
// one row's.
constexpr int64_t KeptScores(int64_t rows, int64_t context) {
  return std::max(context, std::min(rows * context, kMostScores));
}

}  // namespace heddle::kernels
