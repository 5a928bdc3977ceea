// POST /v1/responses: converts its body to a chat request. Items become messages; a previous
// response's conversation comes first.
// Source: OpenAI's API reference, "Responses".
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/openai/conversation_store.h"
#include "server/openai/request_context.h"
#include "server/openai/response_store.h"
#include "server/openai/response_tools.h"

namespace heddle::server {

// The stores of responses and conversations from which requests go on.
struct ResponseStores {
  ResponseStore* responses = nullptr;
  ConversationStore* conversations = nullptr;
};

struct ResponsesRequest {
  ApiRequest api;
  std::string messages;  // JSON array: the conversation that the model answers
  // Members of the response object that repeat the request, as JSON text without braces.
  std::string echo;
  ResponseTools tools;  // what the chat's functions are in this API
  bool store = true;
  bool background = false;
  // The model's input, as it is stored; empty unless `store`, or with a conversation.
  ResponseItems items;
  std::string conversation;   // id of the one that it adds to; empty: none
  size_t first_new_item = 0;  // of `items`: those before it are the conversation's
};

// INVALID_ARGUMENT or NOT_FOUND, with param and code. `unique` makes the ids of items unique.
absl::StatusOr<ResponsesRequest> ParseResponsesRequest(std::string_view body,
                                                       const RequestContext& context,
                                                       const ResponseStores& stores,
                                                       std::string_view unique);

// Returns {"object":"response.input_tokens","input_tokens":n} for such a body: the number in its
// answer's usage, even if the context does not hold it.
absl::StatusOr<std::string> CountResponseTokens(std::string_view body,
                                                const RequestContext& context,
                                                const ResponseStores& stores);

// A request of /v1/responses/compact as a chat request that asks for a summary, and the user's
// messages, which stay as they are.
struct CompactionRequest {
  ApiRequest api;
  ResponseItems users;
};

absl::StatusOr<CompactionRequest> ParseCompactionRequest(std::string_view body,
                                                         const RequestContext& context,
                                                         const ResponseStores& stores,
                                                         std::string_view unique);

}  // namespace heddle::server
