// The state of batches at a moment, as /metrics shows it. Counters of lines and batches are
// ServerMetrics' own. Plain data: no state is shared between threads.
#pragma once

#include <array>
#include <cstdint>

#include "server/batch/batch_record.h"

namespace heddle::server {

struct BatchFigures {
  std::array<int64_t, kNumBatchStatuses> batches{};  // that are remembered, by status
  int64_t lines_left = 0;  // of batches that have not ended: lines without a result
  int64_t lines_running = 0;
  int64_t lines_held = 0;  // of those that run: they wait while live requests have the engine
  int64_t file_bytes = 0;  // of all files, inputs and results
  int64_t file_bytes_limit = 0;
};

}  // namespace heddle::server
