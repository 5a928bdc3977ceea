// Converts the JSON text of /v1/completions and /v1/chat/completions to GenerationRequests. All
// mistakes of a client are found here, before anything is queued.
// Pure: no socket, no clock; randomness is an argument. Any thread.
#pragma once

#include <cstddef>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/answer/api_request.h"
#include "server/openai/request_context.h"

namespace heddle::server {

// OpenAI allows 4 stop strings, other servers more; the limits keep one request from being a flood.
inline constexpr size_t kMaxStopStrings = 64;
inline constexpr size_t kMaxStopBytes = 4096;
inline constexpr size_t kMaxChoices = 512;  // prompts times n

// INVALID_ARGUMENT or NOT_FOUND, with param and code for the client (api_error.h).
absl::StatusOr<ApiRequest> ParseRequest(Endpoint endpoint, std::string_view body,
                                        const RequestContext& context);

}  // namespace heddle::server
