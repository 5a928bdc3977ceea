#include "server/http/preparation.h"

#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "server/anthropic/messages_request.h"
#include "server/http/embedding_exchange.h"
#include "server/http/generation_exchange.h"
#include "server/http/responses.h"
#include "server/openai/embeddings.h"
#include "server/openai/responses_request.h"
#include "server/openai/tokenize.h"

namespace heddle::server {
namespace {

class GenerationPreparation final : public Preparation {
 public:
  explicit GenerationPreparation(PreparationParts parts) : parts_(std::move(parts)) {}

  absl::Status Read(const Patience& patience) override {
    parts_.context.patience = patience;
    HEDDLE_ASSIGN_OR_RETURN(generation_,
                            ParseGeneration(parts_.route, parts_.request.body, parts_.context,
                                            parts_.identity, &parts_.server->responses));
    return absl::OkStatus();
  }

  absl::StatusOr<std::shared_ptr<Exchange>> Begin(scheduler::AdapterUse adapter) override {
    auto exchange = std::make_shared<GenerationExchange>(
        parts_.server, std::move(generation_.request), std::move(generation_.format), parts_.writer,
        parts_.request.received, std::move(adapter));
    HEDDLE_RETURN_IF_ERROR(exchange->Submit(parts_.inbox));
    return exchange;
  }

  const ModelChoice* model() const override { return &generation_.request->model; }

 private:
  PreparationParts parts_;
  Generation generation_;
};

EmbeddingTask TaskOf(RouteId id) {
  if (id == RouteId::kScore) return EmbeddingTask::kScore;
  return id == RouteId::kRerank ? EmbeddingTask::kRerank : EmbeddingTask::kEmbed;
}

class EmbeddingPreparation final : public Preparation {
 public:
  explicit EmbeddingPreparation(PreparationParts parts) : parts_(std::move(parts)) {}

  absl::Status Read(const Patience& patience) override {
    parts_.context.patience = patience;
    HEDDLE_ASSIGN_OR_RETURN(
        parsed_, ParseEmbeddingRequest(TaskOf(parts_.route), parts_.request.body, parts_.context));
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
  using MakeBody =
      std::function<absl::StatusOr<std::string>(std::string_view, const RequestContext&)>;

  AnswerPreparation(PreparationParts parts, MakeBody make_body)
      : parts_(std::move(parts)), make_body_(std::move(make_body)) {}

  absl::Status Read(const Patience& patience) override {
    parts_.context.patience = patience;
    HEDDLE_ASSIGN_OR_RETURN(response_.body, make_body_(parts_.request.body, parts_.context));
    return absl::OkStatus();
  }

  absl::StatusOr<std::shared_ptr<Exchange>> Begin(scheduler::AdapterUse) override {
    AddCorsHeaders(parts_.server->options.cors_origin, &response_);
    parts_.writer->Send(std::move(response_));
    return nullptr;
  }

 private:
  PreparationParts parts_;
  MakeBody make_body_;
  HttpResponse response_;
};

}  // namespace

bool NeedsPreparation(RouteId id) {
  return IsGenerationRoute(id) || id == RouteId::kTokenize || id == RouteId::kDetokenize ||
         id == RouteId::kCountTokens || id == RouteId::kInputTokens || id == RouteId::kModels ||
         id == RouteId::kModel;
}

std::unique_ptr<Preparation> MakePreparation(PreparationParts parts) {
  switch (parts.route) {
    case RouteId::kTokenize:
      return std::make_unique<AnswerPreparation>(std::move(parts), Tokenize);
    case RouteId::kModels:
      return std::make_unique<AnswerPreparation>(
          std::move(parts),
          [](std::string_view, const RequestContext& context) { return ModelList(context); });
    case RouteId::kModel: {
      const RouteMatch match = MatchRoute(parts.request.method, parts.request.path);
      return std::make_unique<AnswerPreparation>(
          std::move(parts),
          [name = std::string(match.parameter)](std::string_view, const RequestContext& context) {
            return ModelCard(name, context);
          });
    }
    case RouteId::kDetokenize:
      return std::make_unique<AnswerPreparation>(std::move(parts), Detokenize);
    case RouteId::kCountTokens:
      return std::make_unique<AnswerPreparation>(std::move(parts), CountMessageTokens);
    case RouteId::kInputTokens: {
      ResponseStore* store = &parts.server->responses;
      return std::make_unique<AnswerPreparation>(
          std::move(parts), [store](std::string_view body, const RequestContext& context) {
            return CountResponseTokens(body, context, store);
          });
    }
    case RouteId::kEmbeddings:
    case RouteId::kScore:
    case RouteId::kRerank:
      return std::make_unique<EmbeddingPreparation>(std::move(parts));
    default:
      return std::make_unique<GenerationPreparation>(std::move(parts));
  }
}

}  // namespace heddle::server
