// What /debug/requests answers: what happened to requests, as JSON. No texts and no token ids.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/generation.h"

namespace heddle::server {

// All requests that are remembered, the newest first.
std::string RequestsJson(const GenerationService& generation);

// One with its steps; `name` is its X-Request-Id or its number. NOT_FOUND where it is unknown or
// was forgotten.
absl::StatusOr<std::string> RequestJson(const GenerationService& generation, std::string_view name);

}  // namespace heddle::server
