// Runs steps of all sizes before those that count: for devices that are slower, and take memory,
// when they meet a size for the first time (Device::needs_warm_up). What fails on a device fails
// then, and not under the first request.
//
// The steps are plans as the scheduler makes them: decoding steps of short and of long contexts
// with all kinds of draws, chunks of prompts, and both together; rows in powers of two up to the
// limits. They write pages of the pool from its beginning on, and leave no sequence behind.
// Thread-safety: as the executor's.
#pragma once

#include "absl/status/status.h"
#include "engine/executor.h"

namespace heddle::engine {

// `limits` with the smallest pool that WarmUp has use for, and without the host's tier.
ExecutorLimits WarmUpLimits(ExecutorLimits limits);

// REQUIRES: nothing is in flight, and no page is in use. Errors are the executor's: the device is
// gone.
absl::Status WarmUp(Executor& executor);

}  // namespace heddle::engine
