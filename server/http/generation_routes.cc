#include "server/http/generation_routes.h"

#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "server/anthropic/messages_format.h"
#include "server/anthropic/messages_request.h"
#include "server/openai/openai_format.h"
#include "server/openai/responses_format.h"
#include "server/openai/responses_request.h"

namespace heddle::server {
namespace {

absl::StatusOr<Generation> OpenAiGeneration(Endpoint endpoint, std::string_view body,
                                            const RequestContext& context,
                                            const AnswerIdentity& identity) {
  HEDDLE_ASSIGN_OR_RETURN(ApiRequest parsed, ParseRequest(endpoint, body, context));
  auto request = std::make_unique<const ApiRequest>(std::move(parsed));
  std::string_view prefix = endpoint == Endpoint::kChat ? "chatcmpl-" : "cmpl-";
  OpenAiFormat::Identity named{base::StrCat(prefix, identity.unique), identity.created};
  auto format = std::make_unique<OpenAiFormat>(request.get(), context.model, context.codec, named);
  return Generation{std::move(request), std::move(format)};
}

absl::StatusOr<Generation> ResponsesGeneration(std::string_view body, const RequestContext& context,
                                               AnswerIdentity identity, ResponseStore* store) {
  HEDDLE_ASSIGN_OR_RETURN(ResponsesRequest parsed,
                          ParseResponsesRequest(body, context, store, identity.unique));
  auto request = std::make_unique<const ApiRequest>(std::move(parsed.api));
  ResponsesFormat::Options options;
  options.codec = context.codec;
  options.unique = std::move(identity.unique);
  options.created = identity.created;
  options.echo = std::move(parsed.echo);
  options.messages = std::move(parsed.messages);
  options.items = std::move(parsed.items);
  options.store = parsed.store ? store : nullptr;
  options.tenant = context.tenant;
  auto format = std::make_unique<ResponsesFormat>(request.get(), context.model, std::move(options));
  return Generation{std::move(request), std::move(format)};
}

absl::StatusOr<Generation> MessagesGeneration(std::string_view body, const RequestContext& context,
                                              AnswerIdentity identity) {
  HEDDLE_ASSIGN_OR_RETURN(ApiRequest parsed, ParseMessagesRequest(body, context));
  auto request = std::make_unique<const ApiRequest>(std::move(parsed));
  auto format = std::make_unique<MessagesFormat>(request.get(), std::move(identity.unique));
  return Generation{std::move(request), std::move(format)};
}

}  // namespace

bool IsGenerationRoute(RouteId id) {
  return id == RouteId::kCompletions || id == RouteId::kChatCompletions ||
         id == RouteId::kResponses || id == RouteId::kMessages || id == RouteId::kEmbeddings ||
         id == RouteId::kScore || id == RouteId::kRerank;
}

absl::StatusOr<Generation> ParseGeneration(RouteId id, std::string_view body,
                                           const RequestContext& context, AnswerIdentity identity,
                                           ResponseStore* store) {
  switch (id) {
    case RouteId::kCompletions:
      return OpenAiGeneration(Endpoint::kCompletion, body, context, identity);
    case RouteId::kResponses:
      return ResponsesGeneration(body, context, std::move(identity), store);
    case RouteId::kMessages:
      return MessagesGeneration(body, context, std::move(identity));
    default:
      return OpenAiGeneration(Endpoint::kChat, body, context, identity);
  }
}

std::string ErrorBodyFor(std::string_view path, const ApiError& error) {
  constexpr std::string_view kMessages = "/v1/messages";
  bool messages = path == kMessages || path.starts_with("/v1/messages/");
  return messages ? MessagesErrorJson(error) : ErrorJson(error);
}

}  // namespace heddle::server
