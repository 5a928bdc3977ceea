// When a client that was refused for want of room should come again: a number of seconds that rides
// along with an absl::Status, from the engine loop to the Retry-After header.
#pragma once

#include <optional>

#include "absl/status/status.h"

namespace heddle::server {

// The same status with the advice added. `seconds` is rounded up to [1, kMaxRetryAfterSeconds].
absl::Status WithRetryAfter(absl::Status status, double seconds);

// A minute: longer waits are guesses.
inline constexpr int kMaxRetryAfterSeconds = 60;

// Nothing where the status carries no advice.
std::optional<int> RetryAfterSeconds(const absl::Status& status);

}  // namespace heddle::server
