// Finds where a step is cut into two halves, if its profile says that it should be.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "kernels/batch.h"
#include "kernels/nano_batch.h"

namespace heddle::kernels::cuda {

struct NanoSplit {
  int32_t sequences = 0;  // of the first half
  int32_t rows = 0;       // of the first half; both halves have some
  int32_t attention_multiprocessors = 0;
};

// Cuts between two sequences, where the halves' rows differ least. Empty if no rule holds, or if
// all rows belong to one sequence.
std::optional<NanoSplit> SplitOf(const HostBatch& batch, const NanoBatchProfile& profile);

// FAILED_PRECONDITION if it was measured on another device; INVALID_ARGUMENT, naming the rule, for
// ranges that are empty or more multiprocessors than there are.
absl::Status CheckProfile(const NanoBatchProfile& profile, const std::string& device_name,
                          int32_t num_multiprocessors);

}  // namespace heddle::kernels::cuda
