#include "server/http/generation_routes.h"

#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "server/anthropic/messages_format.h"
#include "server/anthropic/messages_request.h"
#include "server/kserve/infer_format.h"
#include "server/kserve/infer_request.h"
#include "server/llamacpp/llama_format.h"
#include "server/llamacpp/llama_request.h"
#include "server/ollama/ollama_format.h"
#include "server/ollama/ollama_request.h"
#include "server/openai/compaction.h"
#include "server/openai/openai_format.h"
#include "server/openai/responses_format.h"
#include "server/openai/responses_request.h"

namespace heddle::server {
namespace {

absl::StatusOr<Generation> OpenAiGeneration(Endpoint endpoint, std::string_view body,
                                            const RequestContext& context,
                                            const AnswerIdentity& identity) {
  HEDDLE_ASSIGN_OR_RETURN(ApiRequest parsed, ParseRequest(endpoint, body, context));
  auto request = std::make_unique<ApiRequest>(std::move(parsed));
  OpenAiFormat::Identity named{CompletionId(endpoint, identity.unique), identity.created};
  auto format = std::make_unique<OpenAiFormat>(request.get(), context.model, context.codec, named);
  return Generation{std::move(request), std::move(format)};
}

absl::StatusOr<Generation> ResponsesGeneration(std::string_view body, const RequestContext& context,
                                               AnswerIdentity identity,
                                               const ResponseStores& stores) {
  HEDDLE_ASSIGN_OR_RETURN(ResponsesRequest parsed,
                          ParseResponsesRequest(body, context, stores, identity.unique));
  std::optional<Generation::Background> background;
  if (parsed.background) {
    background = Generation::Background{};
    background->stream = parsed.api.stream;
    parsed.api.stream = true;
  }
  auto request = std::make_unique<ApiRequest>(std::move(parsed.api));
  ResponsesFormat::Options options;
  options.background = parsed.background;
  options.codec = context.codec;
  options.unique = std::move(identity.unique);
  options.created = identity.created;
  options.echo = std::move(parsed.echo);
  options.messages = std::move(parsed.messages);
  options.items = std::move(parsed.items);
  options.tools = std::move(parsed.tools);
  options.conversations = stores.conversations;
  options.conversation = std::move(parsed.conversation);
  options.first_new_item = parsed.first_new_item;
  options.store = parsed.store ? stores.responses : nullptr;
  options.tenant = context.tenant;
  auto format = std::make_unique<ResponsesFormat>(request.get(), context.model, std::move(options));
  if (background.has_value()) {
    background->id = format->id();
    background->frames = format->QueuedFrames();
  }
  return Generation{std::move(request), std::move(format), "", std::move(background)};
}

absl::StatusOr<Generation> CompactionGeneration(std::string_view body,
                                                const RequestContext& context,
                                                AnswerIdentity identity,
                                                const ResponseStores& stores) {
  HEDDLE_ASSIGN_OR_RETURN(CompactionRequest parsed,
                          ParseCompactionRequest(body, context, stores, identity.unique));
  auto request = std::make_unique<ApiRequest>(std::move(parsed.api));
  auto format = std::make_unique<CompactionFormat>(std::move(identity.unique), identity.created,
                                                   std::move(parsed.users));
  return Generation{std::move(request), std::move(format)};
}

absl::StatusOr<Generation> MessagesGeneration(std::string_view body, const RequestContext& context,
                                              AnswerIdentity identity) {
  HEDDLE_ASSIGN_OR_RETURN(ApiRequest parsed, ParseMessagesRequest(body, context));
  auto request = std::make_unique<ApiRequest>(std::move(parsed));
  auto format = std::make_unique<MessagesFormat>(request.get(), std::move(identity.unique));
  return Generation{std::move(request), std::move(format)};
}

absl::StatusOr<Generation> OllamaGeneration(OllamaShape shape, std::string_view body,
                                            const RequestContext& context,
                                            const AnswerIdentity& identity) {
  HEDDLE_ASSIGN_OR_RETURN(OllamaRequest parsed, shape == OllamaShape::kChat
                                                    ? ParseOllamaChat(body, context)
                                                    : ParseOllamaGenerate(body, context));
  if (!parsed.api.has_value()) {
    return Generation{nullptr, nullptr, OllamaLoadBody(parsed.model, shape, identity.created)};
  }
  auto request = std::make_unique<ApiRequest>(*std::move(parsed.api));
  auto format = std::make_unique<OllamaFormat>(request.get(), context.codec, shape,
                                               identity.created, identity.unique);
  return Generation{std::move(request), std::move(format)};
}

absl::StatusOr<Generation> LlamaGeneration(bool infill, std::string_view body,
                                           const RequestContext& context) {
  HEDDLE_ASSIGN_OR_RETURN(LlamaRequest parsed, infill ? ParseLlamaInfill(body, context)
                                                      : ParseLlamaCompletion(body, context));
  auto request = std::make_unique<ApiRequest>(std::move(parsed.api));
  auto format = std::make_unique<LlamaFormat>(request.get(), context.codec, parsed.return_tokens);
  return Generation{std::move(request), std::move(format)};
}

absl::StatusOr<Generation> InferGeneration(std::string_view body, const RequestContext& context) {
  HEDDLE_ASSIGN_OR_RETURN(InferRequest parsed, ParseInferRequest(body, context));
  auto request = std::make_unique<ApiRequest>(std::move(parsed.api));
  auto format = std::make_unique<InferFormat>(request.get(), std::move(parsed.id));
  return Generation{std::move(request), std::move(format)};
}

}  // namespace

bool IsGenerationRoute(RouteId id) {
  switch (id) {
    case RouteId::kCompletions:
    case RouteId::kChatCompletions:
    case RouteId::kResponses:
    case RouteId::kCompactResponse:
    case RouteId::kMessages:
    case RouteId::kOllamaChat:
    case RouteId::kOllamaGenerate:
    case RouteId::kLlamaCompletion:
    case RouteId::kLlamaInfill:
    case RouteId::kKserveInfer:
    case RouteId::kContinueBranch:
    case RouteId::kScoreBranch:
      return true;
    default:
      return IsEmbeddingRoute(id);
  }
}

bool IsEmbeddingRoute(RouteId id) {
  switch (id) {
    case RouteId::kEmbeddings:
    case RouteId::kScore:
    case RouteId::kRerank:
    case RouteId::kClassify:
    case RouteId::kAnyRerank:
    case RouteId::kTeiEmbed:
    case RouteId::kTeiPredict:
    case RouteId::kTeiSimilarity:
    case RouteId::kTeiRoot:
    case RouteId::kCohereEmbed:
    case RouteId::kCohereEmbed2:
    case RouteId::kOllamaEmbed:
    case RouteId::kOllamaEmbeddings:
      return true;
    default:
      return false;
  }
}

std::string CompletionId(Endpoint endpoint, std::string_view unique) {
  return base::StrCat(endpoint == Endpoint::kChat ? "chatcmpl-" : "cmpl-", unique);
}

absl::StatusOr<Generation> ParseGeneration(RouteId id, std::string_view body,
                                           const RequestContext& context, AnswerIdentity identity,
                                           const ResponseStores& stores) {
  switch (id) {
    case RouteId::kCompletions:
      return OpenAiGeneration(Endpoint::kCompletion, body, context, identity);
    case RouteId::kResponses:
      return ResponsesGeneration(body, context, std::move(identity), stores);
    case RouteId::kCompactResponse:
      return CompactionGeneration(body, context, std::move(identity), stores);
    case RouteId::kMessages:
      return MessagesGeneration(body, context, std::move(identity));
    case RouteId::kKserveInfer:
      return InferGeneration(body, context);
    case RouteId::kLlamaCompletion:
    case RouteId::kLlamaInfill:
      return LlamaGeneration(id == RouteId::kLlamaInfill, body, context);
    case RouteId::kOllamaChat:
      return OllamaGeneration(OllamaShape::kChat, body, context, identity);
    case RouteId::kOllamaGenerate:
      return OllamaGeneration(OllamaShape::kGenerate, body, context, identity);
    default:
      return OpenAiGeneration(Endpoint::kChat, body, context, identity);
  }
}

std::string ErrorBodyFor(std::string_view path, const ApiError& error) {
  constexpr std::string_view kMessages = "/v1/messages";
  if (path.starts_with("/api/")) return OllamaErrorJson(error);
  if (path.starts_with("/v2/models/") || path.starts_with("/v2/health/")) {
    return InferErrorJson(error);
  }
  bool messages = path == kMessages || path.starts_with("/v1/messages/");
  return messages ? MessagesErrorJson(error) : ErrorJson(error);
}

}  // namespace heddle::server
