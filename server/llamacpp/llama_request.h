// llama.cpp's /completion and /infill as completions of this server.
// Pure: no socket, no clock. Any thread.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "server/answer/api_request.h"
#include "server/openai/request_context.h"

namespace heddle::server {

struct LlamaRequest {
  ApiRequest api;
  bool return_tokens = false;
};

// INVALID_ARGUMENT or NOT_FOUND, with param and code for the client (api_error.h).
absl::StatusOr<LlamaRequest> ParseLlamaCompletion(std::string_view body,
                                                  const RequestContext& context);

// The texts are put between the model's fill-in-the-middle tokens. What does not fit into the
// context is left out: the further texts first, then the beginning of the prefix and the end of the
// suffix. INVALID_ARGUMENT: the model has no such tokens.
absl::StatusOr<LlamaRequest> ParseLlamaInfill(std::string_view body, const RequestContext& context);

}  // namespace heddle::server
