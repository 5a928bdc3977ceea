// POST /v1/messages: converts Anthropic's request to a chat request. Content blocks become
// messages: text stays, tool_use becomes a tool call, tool_result a message of a tool, thinking a
// turn's reasoning. Source: Anthropic's API reference, "Messages".
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/openai/request_context.h"

namespace heddle::server {

// Returns INVALID_ARGUMENT or NOT_FOUND; messages name fields as this API does.
absl::StatusOr<ApiRequest> ParseMessagesRequest(std::string_view body,
                                                const RequestContext& context);

// Returns {"input_tokens": n}: the tokens that the model would read for such a body, in which
// max_tokens may be missing.
absl::StatusOr<std::string> CountMessageTokens(std::string_view body,
                                               const RequestContext& context);

}  // namespace heddle::server
