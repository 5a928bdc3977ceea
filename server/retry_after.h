// Tells a client that was refused for want of room when to try again: a number of seconds attached
// to an absl::Status, from the engine loop to the Retry-After header.
#pragma once

#include <optional>

#include "absl/status/status.h"

namespace heddle::server {

// The same status with the advice added. `seconds` is rounded up to [1, kMaxRetryAfterSeconds].
absl::Status WithRetryAfter(absl::Status status, double seconds);

// One minute: longer waits would be guesses.
inline constexpr int kMaxRetryAfterSeconds = 60;

// The wait that clients are told while the engine recovers, which may have to load.
inline constexpr double kRecoverySeconds = 5;

// The advice of `status`, if it has one.
std::optional<int> RetryAfterSeconds(const absl::Status& status);

}  // namespace heddle::server
