// The answers of /debug/requests: what happened to requests, as JSON, without texts or token ids.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/generation.h"

namespace heddle::server {

// All remembered requests, the newest first.
std::string RequestsJson(const GenerationService& generation);

// One request with its steps; `name` is its X-Request-Id or its number. NOT_FOUND if it is unknown
// or was forgotten.
absl::StatusOr<std::string> RequestJson(const GenerationService& generation, std::string_view name);

}  // namespace heddle::server
