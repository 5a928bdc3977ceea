// Runs steps of all sizes before the first request, for devices that are slower and take memory
// when they meet a size for the first time (Device::warm_up_rows). Failures of a device then show
// here, and not under the first request.
//
// The steps are plans like the scheduler's: decodes with short and with long contexts and all kinds
// of draws, chunks of prompts, and both together, with the numbers of rows that the device asks
// for, up to the limits. They write pages from the pool's beginning, and leave no sequence behind.
// Thread-safety: as the executor's.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "engine/executor.h"

namespace heddle::engine {

// `limits` with the smallest pool that WarmUp can use, and without the host's tier.
ExecutorLimits WarmUpLimits(ExecutorLimits limits);

// `rows` is Device::warm_up_rows. REQUIRES: nothing is in flight, and no page is in use. An error
// is the executor's: the device is gone.
absl::Status WarmUp(Executor& executor, std::span<const int32_t> rows);

}  // namespace heddle::engine
