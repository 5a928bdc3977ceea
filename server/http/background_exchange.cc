#include "server/http/background_exchange.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/message.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "server/http/background_responses.h"
#include "server/http/response_following.h"
#include "server/http/response_routes.h"
#include "server/http/responses.h"
#include "server/openai/api_fields.h"
#include "server/request/api_error.h"
#include "server/request/query_fields.h"
#include "server/request/request_fields.h"

namespace heddle::server {
namespace {

// Thread: the connection's I/O thread.
class BackgroundExchange final : public Exchange,
                                 public std::enable_shared_from_this<BackgroundExchange> {
 public:
  BackgroundExchange(const PreparationParts& parts, bool stream)
      : server_(parts.server),
        writer_(parts.writer),
        inbox_(parts.inbox),
        path_(parts.request.path),
        stream_(stream) {}

  void OnStarted(const absl::StatusOr<std::shared_ptr<ResponseLog>>& started) {
    if (ended_) return;
    const std::string& origin = server_->options.cors_origin;
    if (started.ok() && stream_) {
      following_ = std::make_shared<FollowingExchange>(*started, 0, writer_, inbox_);
      following_->Begin(origin);
      return;
    }
    ended_ = true;
    if (!started.ok()) {
      const ApiError error = ToApiError(started.status());
      writer_->Send(ErrorResponse(error, ErrorBodyFor(path_, error), origin));
      return;
    }
    HttpResponse response = JsonResponse((*started)->body());
    AddCorsHeaders(origin, &response);
    writer_->Send(std::move(response));
  }

  void OnDisconnect() override {
    ended_ = true;
    if (following_ != nullptr) following_->OnDisconnect();
  }
  void OnDrained() override {
    if (following_ != nullptr) following_->OnDrained();
  }
  void OnTick(Clock::time_point) override {}

 private:
  const ServerContext* server_;
  ResponseWriter* const writer_;
  EventInbox* const inbox_;
  const std::string path_;
  const bool stream_;
  std::shared_ptr<FollowingExchange> following_;
  bool ended_ = false;
};

class ResponseRoute final : public Preparation {
 public:
  explicit ResponseRoute(PreparationParts parts) : parts_(std::move(parts)) {}

  absl::Status Read(const Patience&) override {
    std::vector<QueryParameter> query;
    if (!ParseQuery(parts_.request.query, &query)) return BrokenQuery();
    HEDDLE_ASSIGN_OR_RETURN(const Json json, QueryObject(fields::kResponseQuery, query));
    HEDDLE_ASSIGN_OR_RETURN(const auto fields, RequestFields<fields::kResponseQuery>::Check(json));
    const std::string* stream = fields.Text<"stream">();
    if (stream != nullptr && *stream != "true" && *stream != "false") {
      return FieldError("stream", "'stream' must be true or false");
    }
    const RouteMatch match = MatchRoute(parts_.request.method, parts_.request.path);
    const std::string id(match.parameter);
    log_ = parts_.server->background->Find(id, parts_.context.tenant);
    from_ = fields.Int<"starting_after">(-1) + 1;
    streams_ = stream != nullptr && *stream == "true" && parts_.request.method != "HEAD";
    if (log_ != nullptr) return absl::OkStatus();
    HEDDLE_ASSIGN_OR_RETURN(body_, AnswerAboutResponse(RouteId::kResponse, id,
                                                       parts_.context.tenant, "", parts_.server));
    if (!streams_) return absl::OkStatus();
    return FieldError("stream",
                      "only the events of a response that was made with 'background' are kept, and "
                      "only while there is room");
  }

  absl::StatusOr<std::shared_ptr<Exchange>> Begin(scheduler::AdapterUse) override {
    const std::string& origin = parts_.server->options.cors_origin;
    if (log_ != nullptr && streams_) {
      auto exchange = std::make_shared<FollowingExchange>(log_, from_, parts_.writer, parts_.inbox);
      exchange->Begin(origin);
      return exchange;
    }
    HttpResponse response = JsonResponse(log_ != nullptr ? log_->body() : std::move(body_));
    AddCorsHeaders(origin, &response);
    parts_.writer->Send(std::move(response));
    return nullptr;
  }

 private:
  PreparationParts parts_;
  std::shared_ptr<ResponseLog> log_;  // nullptr: it is not one in the background
  std::string body_;
  int64_t from_ = 0;
  bool streams_ = false;
};

}  // namespace

std::shared_ptr<Exchange> StartInBackground(const PreparationParts& parts, Generation generation,
                                            scheduler::AdapterUse adapter) {
  auto exchange = std::make_shared<BackgroundExchange>(parts, generation.background->stream);
  RequestRecord& own = parts.writer->record();
  BackgroundResponses::Start start{.generation = std::move(generation),
                                   .adapter = std::move(adapter),
                                   .record = own,
                                   .received = parts.request.received,
                                   .tenant = parts.context.tenant};
  // The response owns the accounts that count the answer from here on.
  start.record.method = "BACKGROUND";
  start.record.answer_headers.clear();
  own.accounts.clear();
  own.trace = {};
  own.is_handed_over = true;
  parts.server->background->Begin(
      std::move(start), [exchange, inbox = parts.inbox->shared_from_this()](
                            absl::StatusOr<std::shared_ptr<ResponseLog>> started) {
        inbox->Post([exchange, started = std::move(started)] { exchange->OnStarted(started); });
      });
  return exchange;
}

std::unique_ptr<Preparation> MakeResponseRoute(PreparationParts parts) {
  return std::make_unique<ResponseRoute>(std::move(parts));
}

}  // namespace heddle::server
