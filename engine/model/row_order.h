// The orders of rows in checkpoints' matrices, and the order that the decoder has: which rows of a
// tensor, or of several that are stacked, a rank packs, and how they follow each other.
// Pure functions.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/model/model_spec.h"
#include "engine/parallel/cut_sources.h"

namespace heddle::engine {

inline Range Times(Range range, int64_t width) {
  return {range.first * width, range.count * width};
}

// The rows of a rank's heads in q over k over v, and behind them those of its heads' gates.
Cut QkvRows(const AttentionSpec& attention, const HeadShare& share);

// Reorders heads of `head_bytes` each: `from` has, per KV head, its query heads, its k, its v.
std::vector<std::byte> AllQThenKThenV(std::span<const std::byte> from, int64_t head_bytes,
                                      const AttentionSpec& attention);

// The same of a recurrence, for a range of its key heads: the rows of its product, the channels of
// its convolution, and its heads.
Cut RecurrenceRowsOf(const RecurrenceSpec& recurrence, Range key_heads);
std::vector<Range> RecurrenceChannels(const RecurrenceSpec& recurrence, Range key_heads);
Range RecurrenceHeads(const RecurrenceSpec& recurrence, Range key_heads);

}  // namespace heddle::engine
