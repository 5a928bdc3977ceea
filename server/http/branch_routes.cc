#include "server/http/branch_routes.h"

#include <optional>
#include <string>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "server/branches/branch_requests.h"
#include "server/branches/branch_turns.h"
#include "server/http/generation_exchange.h"
#include "server/http/responses.h"
#include "server/http/scoring_exchange.h"
#include "server/openai/openai_format.h"

namespace heddle::server {
namespace {

std::string BranchIdOf(const PreparationParts& parts) {
  return std::string(MatchRoute(parts.request.method, parts.request.path).parameter);
}

BranchAccess AccessOf(const PreparationParts& parts) {
  return {parts.server->branches.get(), parts.context.tenant, parts.identity.created};
}

// Answers a request as soon as it is read.
class TablePreparation final : public Preparation {
 public:
  explicit TablePreparation(PreparationParts parts)
      : parts_(std::move(parts)), id_(BranchIdOf(parts_)) {}

  absl::Status Read(const Patience& patience) override {
    if (parts_.server->branches == nullptr) return NoBranches();
    parts_.context.patience = patience;
    HEDDLE_ASSIGN_OR_RETURN(body_, Make());
    return absl::OkStatus();
  }

  absl::StatusOr<std::shared_ptr<Exchange>> Begin(scheduler::AdapterUse) override {
    HttpResponse response = JsonResponse(std::move(body_));
    AddCorsHeaders(parts_.server->options.cors_origin, &response);
    parts_.writer->Send(std::move(response));
    return nullptr;
  }

 private:
  absl::StatusOr<std::string> Make() const {
    const std::string& body = parts_.request.body;
    const BranchAccess access = AccessOf(parts_);
    switch (parts_.route) {
      case RouteId::kCreateBranches:
        return CreateBranches(body, parts_.context, access);
      case RouteId::kJoinBranches:
        return JoinBranches(id_, body, parts_.context, access);
      case RouteId::kDeleteBranch:
        return DeleteBranch(id_, access);
      default:
        return DescribeBranch(id_, parts_.context, access);
    }
  }

  PreparationParts parts_;
  const std::string id_;
  std::string body_;
};

// Runs a branch. The answer is a completion, whose id is the branch's.
class ContinuationPreparation final : public Preparation {
 public:
  explicit ContinuationPreparation(PreparationParts parts)
      : parts_(std::move(parts)), id_(BranchIdOf(parts_)) {}

  absl::Status Read(const Patience& patience) override {
    if (parts_.server->branches == nullptr) return NoBranches();
    parts_.context.patience = patience;
    HEDDLE_ASSIGN_OR_RETURN(
        BranchContinuation parsed,
        ParseContinuation(id_, parts_.request.body, parts_.context, AccessOf(parts_)));
    request_ = std::make_unique<ApiRequest>(std::move(parsed.api));
    num_tokens_ = parsed.num_tokens;
    return absl::OkStatus();
  }

  absl::StatusOr<std::shared_ptr<Exchange>> Begin(scheduler::AdapterUse adapter) override {
    const RequestContext& context = parts_.context;
    BranchTable* const table = parts_.server->branches.get();
    const int64_t now = parts_.identity.created;
    const bool is_group = !request_->generations.front().workers.empty();
    HEDDLE_ASSIGN_OR_RETURN(
        std::unique_ptr<BranchTurns> turns,
        is_group
            ? BranchTurns::Work(table, context.tenant, id_, now, request_.get())
            : BranchTurns::Continue(table, context.tenant, id_, num_tokens_, now, request_.get()));
    auto format =
        std::make_unique<OpenAiFormat>(request_.get(), context.model, context.codec,
                                       OpenAiFormat::Identity{id_, parts_.identity.created});
    auto exchange = std::make_shared<GenerationExchange>(
        parts_.server, std::move(request_), std::move(format), parts_.writer,
        parts_.request.received, std::move(adapter), std::move(turns));
    HEDDLE_RETURN_IF_ERROR(exchange->Submit(parts_.inbox));
    return exchange;
  }

  const ModelChoice* model() const override { return &request_->model; }

 private:
  PreparationParts parts_;
  const std::string id_;
  std::unique_ptr<ApiRequest> request_;
  int64_t num_tokens_ = 0;
};

class ScoringPreparation final : public Preparation {
 public:
  explicit ScoringPreparation(PreparationParts parts)
      : parts_(std::move(parts)), id_(BranchIdOf(parts_)) {}

  absl::Status Read(const Patience& patience) override {
    if (parts_.server->branches == nullptr) return NoBranches();
    parts_.context.patience = patience;
    HEDDLE_ASSIGN_OR_RETURN(
        scoring_, ParseScoring(id_, parts_.request.body, parts_.context, AccessOf(parts_)));
    return absl::OkStatus();
  }

  absl::StatusOr<std::shared_ptr<Exchange>> Begin(scheduler::AdapterUse adapter) override {
    HEDDLE_RETURN_IF_ERROR(parts_.server->branches->Charge(
        parts_.context.tenant, id_, scoring_.scored_tokens, parts_.identity.created));
    auto exchange =
        std::make_shared<ScoringExchange>(parts_.server, std::move(scoring_), parts_.writer,
                                          parts_.request.received, std::move(adapter));
    HEDDLE_RETURN_IF_ERROR(exchange->Submit(parts_.inbox));
    return exchange;
  }

  const ModelChoice* model() const override { return &scoring_.model; }

 private:
  PreparationParts parts_;
  const std::string id_;
  BranchScoring scoring_;
};

}  // namespace

absl::Status NoBranches() {
  return absl::UnimplementedError("this server keeps no branches (--max-branches 0)");
}

bool IsBranchRoute(RouteId id) {
  switch (id) {
    case RouteId::kCreateBranches:
    case RouteId::kBranch:
    case RouteId::kDeleteBranch:
    case RouteId::kContinueBranch:
    case RouteId::kJoinBranches:
    case RouteId::kScoreBranch:
      return true;
    default:
      return false;
  }
}

std::unique_ptr<Preparation> MakeBranchPreparation(PreparationParts parts) {
  if (parts.route == RouteId::kContinueBranch) {
    return std::make_unique<ContinuationPreparation>(std::move(parts));
  }
  if (parts.route == RouteId::kScoreBranch) {
    return std::make_unique<ScoringPreparation>(std::move(parts));
  }
  return std::make_unique<TablePreparation>(std::move(parts));
}

}  // namespace heddle::server
