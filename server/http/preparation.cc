#include "server/http/preparation.h"

#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "server/anthropic/messages_models.h"
#include "server/anthropic/messages_request.h"
#include "server/branches/branch_turns.h"
#include "server/cohere/cohere_embed.h"
#include "server/http/adapter_update.h"
#include "server/http/background_exchange.h"
#include "server/http/beam_exchange.h"
#include "server/http/branch_routes.h"
#include "server/http/content_coding.h"
#include "server/http/conversation_routes.h"
#include "server/http/embedding_exchange.h"
#include "server/http/file_routes.h"
#include "server/http/generation_exchange.h"
#include "server/http/parallel_exchange.h"
#include "server/http/response_routes.h"
#include "server/http/responses.h"
#include "server/http/search_exchange.h"
#include "server/kserve/kserve_models.h"
#include "server/llamacpp/llama_server.h"
#include "server/ollama/ollama_embed.h"
#include "server/ollama/ollama_models.h"
#include "server/openai/adapter_updates.h"
#include "server/openai/embeddings.h"
#include "server/openai/responses_request.h"
#include "server/openai/tokenize.h"
#include "server/tei/tei_routes.h"

namespace heddle::server {
namespace {

void SendJson(const ServerContext& server, std::string body, ResponseWriter* writer) {
  HttpResponse response = JsonResponse(std::move(body));
  AddCorsHeaders(server.options.cors_origin, &response);
  writer->Send(std::move(response));
}

ResponseStores StoresOf(ServerContext* server) {
  return {&server->responses, &server->conversations};
}

class GenerationPreparation final : public Preparation {
 public:
  explicit GenerationPreparation(PreparationParts parts) : parts_(std::move(parts)) {}

  absl::Status Read(const Patience& patience) override {
    parts_.context.patience = patience;
    HEDDLE_ASSIGN_OR_RETURN(generation_,
                            ParseGeneration(parts_.route, parts_.request.body, parts_.context,
                                            parts_.identity, StoresOf(parts_.server)));
    return absl::OkStatus();
  }

  absl::StatusOr<std::shared_ptr<Exchange>> Begin(scheduler::AdapterUse adapter) override {
    if (generation_.request == nullptr) {
      SendJson(*parts_.server, std::move(generation_.body), parts_.writer);
      return nullptr;
    }
    if (generation_.background.has_value()) {
      return StartInBackground(parts_, std::move(generation_), std::move(adapter));
    }
    if (generation_.request->beam_width > 0) return SearchBeams(std::move(adapter));
    if (generation_.request->search.samples > 0) return SearchSamples(std::move(adapter));
    if (generation_.request->parallel.syntax != nullptr) return RunInBranches(std::move(adapter));
    std::unique_ptr<BranchTurns> turns;
    if (generation_.request->keep) {
      HEDDLE_ASSIGN_OR_RETURN(turns, KeepAnswer());
    }
    auto exchange = std::make_shared<GenerationExchange>(
        parts_.server, std::move(generation_.request), std::move(generation_.format), parts_.writer,
        parts_.request.received, std::move(adapter), std::move(turns));
    HEDDLE_RETURN_IF_ERROR(exchange->Submit(parts_.inbox));
    return exchange;
  }

  const ModelChoice* model() const override {
    return generation_.request == nullptr ? nullptr : &generation_.request->model;
  }

 private:
  absl::StatusOr<std::shared_ptr<Exchange>> SearchBeams(scheduler::AdapterUse adapter) {
    auto exchange = std::make_shared<BeamExchange>(parts_.server, std::move(generation_.request),
                                                   std::move(generation_.format), parts_.writer,
                                                   parts_.request.received, std::move(adapter));
    HEDDLE_RETURN_IF_ERROR(exchange->Submit(parts_.inbox));
    return exchange;
  }

  absl::StatusOr<std::shared_ptr<Exchange>> SearchSamples(scheduler::AdapterUse adapter) {
    HEDDLE_ASSIGN_OR_RETURN(std::unique_ptr<SampleSearch> search,
                            SampleSearch::Make(generation_.request->search));
    auto exchange = std::make_shared<SearchExchange>(
        parts_.server, std::move(generation_.request), std::move(generation_.format), parts_.writer,
        parts_.request.received, std::move(adapter), std::move(search));
    HEDDLE_RETURN_IF_ERROR(exchange->Submit(parts_.inbox));
    return exchange;
  }

  absl::StatusOr<std::shared_ptr<Exchange>> RunInBranches(scheduler::AdapterUse adapter) {
    const std::string& why_not = parts_.server->options.branches.no_concurrent;
    if (generation_.request->parallel.syntax->is_concurrent() && !why_not.empty()) {
      return WithParam(WithCode(absl::InvalidArgumentError(why_not), "concurrent_join_unsupported"),
                       "parallel.format");
    }
    auto exchange = std::make_shared<ParallelExchange>(
        parts_.server, std::move(generation_.request), std::move(generation_.format), parts_.writer,
        parts_.request.received, std::move(adapter));
    HEDDLE_RETURN_IF_ERROR(exchange->Submit(parts_.inbox));
    return exchange;
  }

  // Makes the answer's choices branches of a tree, under the answer's id.
  absl::StatusOr<std::unique_ptr<BranchTurns>> KeepAnswer() {
    BranchTable* table = parts_.server->branches.get();
    if (table == nullptr) return NoBranches();
    ApiRequest* request = generation_.request.get();
    const std::string id = CompletionId(request->endpoint, parts_.identity.unique);
    return BranchTurns::Keep(table, parts_.context.tenant, id, request->common,
                             parts_.identity.created, request);
  }

  PreparationParts parts_;
  Generation generation_;
};

absl::StatusOr<EmbeddingRequest> ParseEmbedding(RouteId route, std::string_view body,
                                                const RequestContext& context) {
  switch (route) {
    case RouteId::kScore:
      return ParseEmbeddingRequest(EmbeddingTask::kScore, body, context);
    case RouteId::kRerank:
      return ParseEmbeddingRequest(EmbeddingTask::kRerank, body, context);
    case RouteId::kClassify:
      return ParseEmbeddingRequest(EmbeddingTask::kClassify, body, context);
    case RouteId::kAnyRerank:
      return ParseAnyRerank(body, context);
    case RouteId::kTeiEmbed:
      return ParseTeiEmbed(body, context);
    case RouteId::kTeiPredict:
      return ParseTeiPredict(body, context);
    case RouteId::kTeiSimilarity:
      return ParseTeiSimilarity(body, context);
    case RouteId::kTeiRoot:
      return ParseTeiRoot(body, context);
    case RouteId::kCohereEmbed:
      return ParseCohereEmbed(/*version=*/1, body, context);
    case RouteId::kCohereEmbed2:
      return ParseCohereEmbed(/*version=*/2, body, context);
    case RouteId::kOllamaEmbed:
      return ParseOllamaEmbed(body, context);
    case RouteId::kOllamaEmbeddings:
      return ParseOllamaEmbeddings(body, context);
    default:
      return ParseEmbeddingRequest(EmbeddingTask::kEmbed, body, context);
  }
}

class EmbeddingPreparation final : public Preparation {
 public:
  explicit EmbeddingPreparation(PreparationParts parts) : parts_(std::move(parts)) {}

  absl::Status Read(const Patience& patience) override {
    parts_.context.patience = patience;
    HEDDLE_ASSIGN_OR_RETURN(parsed_,
                            ParseEmbedding(parts_.route, parts_.request.body, parts_.context));
    return absl::OkStatus();
  }

  absl::StatusOr<std::shared_ptr<Exchange>> Begin(scheduler::AdapterUse adapter) override {
    auto exchange = std::make_shared<EmbeddingExchange>(
        parts_.server, std::move(parsed_), std::move(parts_.identity), parts_.writer,
        parts_.request.received, std::move(adapter));
    HEDDLE_RETURN_IF_ERROR(exchange->Submit(parts_.inbox));
    return exchange;
  }

  const ModelChoice* model() const override { return &parsed_.model; }

 private:
  PreparationParts parts_;
  EmbeddingRequest parsed_;
};

// Prepares requests that are answered as soon as they are read.
class AnswerPreparation final : public Preparation {
 public:
  AnswerPreparation(PreparationParts parts, MakeBody make_body)
      : parts_(std::move(parts)), make_body_(std::move(make_body)) {}

  absl::Status Read(const Patience& patience) override {
    parts_.context.patience = patience;
    HEDDLE_ASSIGN_OR_RETURN(body_, make_body_(parts_.request.body, parts_.context));
    return absl::OkStatus();
  }

  absl::StatusOr<std::shared_ptr<Exchange>> Begin(scheduler::AdapterUse) override {
    SendJson(*parts_.server, std::move(body_), parts_.writer);
    return nullptr;
  }

 private:
  PreparationParts parts_;
  MakeBody make_body_;
  std::string body_;
};

// The function that answers a route by its body and context alone; null: the route needs more.
MakeBody BodyMaker(RouteId id) {
  const auto without_body = [](auto make) {
    return [make](std::string_view, const RequestContext& context) { return make(context); };
  };
  switch (id) {
    case RouteId::kTokenize:
      return Tokenize;
    case RouteId::kDetokenize:
      return Detokenize;
    case RouteId::kCountTokens:
      return CountMessageTokens;
    case RouteId::kOllamaTags:
      return without_body(OllamaTags);
    case RouteId::kOllamaRunning:
      return without_body(OllamaRunning);
    case RouteId::kOllamaShow:
      return OllamaShow;
    case RouteId::kApplyTemplate:
      return ApplyTemplate;
    case RouteId::kLlamaProps:
      return without_body(LlamaProps);
    case RouteId::kTokenizerInfo:
      return without_body(TokenizerInfo);
    case RouteId::kTeiInfo:
      return without_body(TeiInfo);
    case RouteId::kBaseAdapters:
      return [](std::string_view, const RequestContext& context) {
        return absl::StatusOr<std::string>(BaseAdapterList(context));
      };
    default:
      return nullptr;
  }
}

// The same for routes that need more.
MakeBody BodyMakerOf(const PreparationParts& parts) {
  if (MakeBody make = BodyMaker(parts.route)) return make;
  if (IsConversationRoute(parts.route)) return ConversationMaker(parts);
  // Anthropic's clients say which version of its API they speak.
  const bool messages = !parts.request.Header("anthropic-version").empty();
  if (parts.route == RouteId::kModel) {
    const RouteMatch match = MatchRoute(parts.request.method, parts.request.path);
    return [name = std::string(match.parameter), messages](std::string_view,
                                                           const RequestContext& context) {
      return messages ? MessagesModelCard(name, context) : ModelCard(name, context);
    };
  }
  if (parts.route == RouteId::kKserveModel || parts.route == RouteId::kKserveModelReady) {
    const bool ready = parts.route == RouteId::kKserveModelReady;
    return [ready](std::string_view, const RequestContext& context) {
      return ready ? KserveModelReady(context.deployment, context)
                   : KserveModel(context.deployment, context);
    };
  }
  if (parts.route == RouteId::kModels) {
    return [query = parts.request.query, messages](
               std::string_view, const RequestContext& context) -> absl::StatusOr<std::string> {
      if (!messages) return ModelList(context);
      std::vector<QueryParameter> parameters;
      if (!ParseQuery(query, &parameters)) return BrokenQuery();
      return MessagesModelList(parameters, context);
    };
  }
  if (parts.route == RouteId::kInputTokens) {
    return [stores = StoresOf(parts.server)](std::string_view body, const RequestContext& context) {
      return CountResponseTokens(body, context, stores);
    };
  }
  return nullptr;
}

std::unique_ptr<Preparation> MakeOf(PreparationParts parts);

// Unpacks the body of a request before anything reads it: not in a hurry, because a small body may
// unpack to as much as the largest that is allowed.
class UnpackingPreparation final : public Preparation {
 public:
  UnpackingPreparation(PreparationParts parts, ContentCoding coding)
      : parts_(std::move(parts)), coding_(coding) {}

  absl::Status Read(const Patience& patience) override {
    if (inner_ != nullptr) return inner_->Read(patience);
    if (patience.short_only) return TakesLong();
    HEDDLE_ASSIGN_OR_RETURN(std::string body, Unpack(coding_, parts_.request.body,
                                                     parts_.server->options.max_body_bytes));
    parts_.request.body = std::move(body);
    inner_ = MakeOf(std::move(parts_));
    return inner_->Read(patience);
  }

  absl::StatusOr<std::shared_ptr<Exchange>> Begin(scheduler::AdapterUse adapter) override {
    return inner_->Begin(std::move(adapter));
  }

  const ModelChoice* model() const override { return inner_->model(); }

 private:
  PreparationParts parts_;
  const ContentCoding coding_;
  std::unique_ptr<Preparation> inner_;  // null until the body is unpacked
};

std::unique_ptr<Preparation> MakeOf(PreparationParts parts) {
  if (IsAdapterUpdate(parts.route)) return MakeAdapterUpdate(std::move(parts));
  if (parts.route == RouteId::kResponse) return MakeResponseRoute(std::move(parts));
  if (IsFileRoute(parts.route)) return MakeFileRoute(std::move(parts));
  if (IsBranchRoute(parts.route)) return MakeBranchPreparation(std::move(parts));
  if (MakeBody make = BodyMakerOf(parts)) {
    return std::make_unique<AnswerPreparation>(std::move(parts), std::move(make));
  }
  if (IsEmbeddingRoute(parts.route)) {
    return std::make_unique<EmbeddingPreparation>(std::move(parts));
  }
  return std::make_unique<GenerationPreparation>(std::move(parts));
}

}  // namespace

bool NeedsPreparation(RouteId id) {
  return IsGenerationRoute(id) || BodyMaker(id) != nullptr || id == RouteId::kModel ||
         id == RouteId::kModels || id == RouteId::kResponse || id == RouteId::kInputTokens ||
         id == RouteId::kKserveModel || id == RouteId::kKserveModelReady || IsAdapterUpdate(id) ||
         IsFileRoute(id) || IsConversationRoute(id) || IsBranchRoute(id);
}

std::unique_ptr<Preparation> MakePreparation(PreparationParts parts) {
  // A coding that is not supported does not come as far as here.
  const ContentCoding coding =
      ContentCodingOf(parts.request.Header("Content-Encoding")).value_or(ContentCoding::kIdentity);
  if (coding != ContentCoding::kIdentity) {
    return std::make_unique<UnpackingPreparation>(std::move(parts), coding);
  }
  return MakeOf(std::move(parts));
}

}  // namespace heddle::server
