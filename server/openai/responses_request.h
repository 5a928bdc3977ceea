// POST /v1/responses: from its body to a chat request, which it is by another name. Items become
// messages; a previous response's conversation comes first.
// Source: OpenAI's API reference, "Responses".
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/openai/openai_request.h"
#include "server/openai/response_store.h"

namespace heddle::server {

struct ResponsesRequest {
  ApiRequest api;
  std::string messages;  // JSON array: the conversation that the model answers
  // Members of the response object that repeat the request, as JSON text without braces.
  std::string echo;
  bool store = true;
  // What the model is given, as it is kept; empty unless `store`.
  ResponseItems items;
};

// INVALID_ARGUMENT or NOT_FOUND, with param and code. `unique` tells the ids of items apart.
absl::StatusOr<ResponsesRequest> ParseResponsesRequest(std::string_view body,
                                                       const RequestContext& context,
                                                       ResponseStore* store,
                                                       std::string_view unique);

// {"object":"response.input_tokens","input_tokens":n} of such a body: what the usage of its answer
// would say, also where the context does not hold it.
absl::StatusOr<std::string> CountResponseTokens(std::string_view body,
                                                const RequestContext& context,
                                                ResponseStore* store);

}  // namespace heddle::server
