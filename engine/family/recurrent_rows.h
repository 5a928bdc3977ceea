// Rows of the family table for families with gated delta nets, and what rows of other recurrences
// share with them.
// Private to engine/family. Thread-safety: pure function.
#pragma once

#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "engine/family/config_source.h"
#include "engine/family/family_table.h"

namespace heddle::engine {

// Rows or columns of a head's state; far beyond published models, which have 16 to 256. Products of
// two stay within int64.
inline constexpr int64_t kMaxStateDim = 1 << 12;
// Numbers of a layer's snapshot, 1 GiB.
inline constexpr int64_t kMaxSnapshotFloats = int64_t{1} << 28;

// The rows that these are variants of.
struct RecurrentBases {
  Family qwen3;
  Family qwen2_moe;
};
std::vector<Family> RecurrentRows(const RecurrentBases& bases);

// Turns layer `index` into a recurrence.
void Recur(const RecurrenceSpec& recurrence, size_t index, ModelSpec* spec);

// Reads heads, taps and sizes from the keys that llama.cpp writes for all recurrences ("ssm."), and
// checks them. `shape`->rule and `shape`->tiled are read.
absl::Status ReadGgufRecurrence(const GgufSource& source, kernels::RecurrenceShape* shape);

// Refuses recurrences whose heads do not go with their key heads, or whose state is too large. The
// keys appear in messages.
absl::Status CheckRecurrence(const ConfigSource& source, std::string_view heads_key,
                             std::string_view taps_key, const kernels::RecurrenceShape& shape);

}  // namespace heddle::engine
