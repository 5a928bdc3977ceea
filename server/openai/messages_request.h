// POST /v1/messages: from Anthropic's shape to a chat request. Content blocks become messages: text
// stays, tool_use becomes a tool call, tool_result a message of a tool, thinking a turn's
// reasoning. Source: Anthropic's API reference, "Messages".
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/openai/openai_request.h"

namespace heddle::server {

// INVALID_ARGUMENT or NOT_FOUND; messages name fields as this API does.
absl::StatusOr<ApiRequest> ParseMessagesRequest(std::string_view body,
                                                const RequestContext& context);

// {"input_tokens": n} of what such a body (max_tokens may be missing) makes the model read.
absl::StatusOr<std::string> CountMessageTokens(std::string_view body,
                                               const RequestContext& context);

}  // namespace heddle::server
