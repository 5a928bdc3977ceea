// The output of `heddle trace`: the answers of /debug/requests as text for people.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace heddle::server {

// GET /debug/requests/ID: the state of the request, and a line for each event. INVALID_ARGUMENT if
// `body` is not such an answer.
absl::StatusOr<std::string> TimelineText(std::string_view body);

// GET /debug/requests: one line per request, the newest first.
absl::StatusOr<std::string> RequestListText(std::string_view body);

// The message of an error's body in OpenAI's shape, or the body itself.
std::string ErrorMessage(std::string_view body);

}  // namespace heddle::server
