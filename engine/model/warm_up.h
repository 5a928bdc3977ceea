// Runs steps of all sizes before those that count: for devices that are slower, and take memory,
// when they meet a size for the first time (Device::warm_up_rows). What fails on a device fails
// then, and not under the first request.
//
// The steps are plans as the scheduler makes them: decoding steps of short and of long contexts
// with all kinds of draws, chunks of prompts, and both together; rows as the device asks, up to
// the limits. They write pages of the pool from its beginning on, and leave no sequence behind.
// Thread-safety: as the executor's.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "engine/executor.h"

namespace heddle::engine {

// `limits` with the smallest pool that WarmUp has use for, and without the host's tier.
ExecutorLimits WarmUpLimits(ExecutorLimits limits);

// `rows` as Device::warm_up_rows. REQUIRES: nothing is in flight, and no page is in use. Errors are
// the executor's: the device is gone.
absl::Status WarmUp(Executor& executor, std::span<const int32_t> rows);

}  // namespace heddle::engine
