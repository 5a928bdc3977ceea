// The Open Inference Protocol's /v2/models/NAME/infer as a completion: the texts of the tensor
// "text_input" are prompts, and parameters are fields of /v1/completions.
// Pure: no socket, no clock. Any thread.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/answer/api_request.h"
#include "server/openai/request_context.h"

namespace heddle::server {

struct InferRequest {
  ApiRequest api;
  std::string id;  // the client's; empty: none
};

// `body` is JSON, or, if the context says where it ends (RequestContext::json_bytes), JSON with
// binary data behind it. INVALID_ARGUMENT or NOT_FOUND, with param and code.
absl::StatusOr<InferRequest> ParseInferRequest(std::string_view body,
                                               const RequestContext& context);

}  // namespace heddle::server
