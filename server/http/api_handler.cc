#include "server/http/api_handler.h"

#include <charconv>
#include <chrono>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/message.h"
#include "server/http/access_log.h"
#include "server/http/gatekeeper.h"
#include "server/http/generation_routes.h"
#include "server/http/immediate_routes.h"
#include "server/http/preparation.h"
#include "server/http/preparing_exchange.h"
#include "server/http/probes.h"
#include "server/http/request_guard.h"
#include "server/http/responses.h"
#include "server/request/api_error.h"

namespace heddle::server {
namespace {

int64_t UnixSeconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// Whether the parameter of a path is the name of the model that a request is for.
bool NamesModel(std::string_view pattern) {
  return pattern.starts_with("/openai/deployments/") || pattern.starts_with("/v2/models/");
}

// The header of the Open Inference Protocol that says where binary data begins.
absl::Status ReadJsonBytes(const HttpRequest& request, RequestContext* context) {
  constexpr std::string_view kName = "Inference-Header-Content-Length";
  const std::string_view value = request.Header(kName);
  if (value.empty()) return absl::OkStatus();
  size_t bytes = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), bytes);
  if (error != std::errc() || end != value.data() + value.size()) {
    return FieldError("", base::StrCat("'", kName, "' must be a number of bytes"));
  }
  context->json_bytes = bytes;
  return absl::OkStatus();
}

}  // namespace

ApiHandler::ApiHandler(ServerContext* context, PostTask post)
    : context_(context),
      inbox_(std::make_shared<EventInbox>(std::move(post))),
      random_((static_cast<uint64_t>(std::random_device{}()) << 32) | std::random_device{}()) {}

ApiHandler::~ApiHandler() { inbox_->Close(); }

std::shared_ptr<Exchange> ApiHandler::Handle(HttpRequest request, ResponseWriter* writer) {
  const std::string path = request.path;
  const std::string request_id = request.request_id;
  std::shared_ptr<Exchange> exchange;
  const absl::Status status = Guarded(context_->dependencies, "handle", request_id, [&] {
    exchange = Answer(std::move(request), writer);
    return absl::OkStatus();
  });
  if (status.ok()) return exchange;
  if (writer->record().status == 0) {
    writer->Send(Refuse(status, path));
  } else {
    writer->Abort();  // an answer that has begun cannot be replaced
  }
  return nullptr;
}

std::shared_ptr<Exchange> ApiHandler::Answer(HttpRequest request, ResponseWriter* writer) {
  RouteMatch match = MatchRoute(request.method, request.path);
  writer->record().route = match.route == nullptr ? "other" : std::string(match.route->pattern);
  writer->record().trace = Trace(match.route, request);
  writer->record().peer = request.peer;
  if (match.route == nullptr) {
    writer->Send(NoRouteResponse(match, request, context_->options.cors_origin));
    return nullptr;
  }
  absl::StatusOr<uint64_t> tenant = CheckSender(*context_, *match.route, request);
  if (tenant.ok() && match.route->method == "POST") {
    absl::Status admitted = Admit(*context_, *tenant, request, &writer->record());
    if (!admitted.ok()) tenant = admitted;
  }
  if (!tenant.ok()) {
    writer->Send(Refuse(tenant.status(), request.path));
    return nullptr;
  }
  if (NeedsPreparation(match.route->id)) {
    return Prepare(match, *tenant, std::move(request), writer);
  }
  absl::StatusOr<HttpResponse> response = AnswerAtOnce(match, *tenant, request, context_);
  if (response.ok()) {
    AddCorsHeaders(context_->options.cors_origin, &*response);
    writer->Send(*std::move(response));
  } else {
    writer->Send(Refuse(response.status(), request.path));
  }
  return nullptr;
}

std::optional<HttpResponse> ApiHandler::CheckHead(const HttpRequest& head, RequestRecord* record) {
  const RouteMatch match = MatchRoute(head.method, head.path);
  if (match.route == nullptr) {
    record->route = "other";
    return NoRouteResponse(match, head, context_->options.cors_origin);
  }
  record->route = std::string(match.route->pattern);
  const absl::Status allowed = CheckSender(*context_, *match.route, head).status();
  if (allowed.ok()) return std::nullopt;
  return Refuse(allowed, head.path);
}

// The caller's trace or, with spans enabled, a new one; requests that do work get a span.
TraceContext ApiHandler::Trace(const Route* route, const HttpRequest& request) {
  TraceContext trace = ParseTraceparent(request.Header("traceparent")).value_or(TraceContext());
  const SpanExporter* spans = context_->dependencies.spans;
  if (spans == nullptr || route == nullptr || !IsGenerationRoute(route->id)) return trace;
  if (trace.trace_id.empty()) {
    const uint64_t low = random_();
    trace.trace_id = TraceIdFrom(random_(), low);
    trace.sampled = IsSampled(low, context_->options.trace_sample_ratio);
  }
  trace.span_id = SpanIdFrom(random_());
  return trace;
}

// Prepares without delaying the thread's other clients: preparing_exchange.h.
std::shared_ptr<Exchange> ApiHandler::Prepare(const RouteMatch& match, uint64_t tenant,
                                              HttpRequest request, ResponseWriter* writer) {
  const RouteId route = match.route->id;
  const Clock::time_point received = request.received;
  const size_t body_bytes = request.body.size();
  auto fail = [this, writer, path = request.path](const absl::Status& status) {
    writer->Send(Refuse(status, path));
  };
  if (IsGenerationRoute(route)) {
    if (const absl::Status serving = CheckServing(*context_); !serving.ok()) {
      fail(serving);
      return nullptr;
    }
  }
  const uint64_t client = tenant != 0 ? tenant : request.peer;  // who take turns
  PreparationParts parts{.server = context_,
                         .inbox = inbox_.get(),
                         .writer = writer,
                         .route = route,
                         .request = std::move(request),
                         .context = NewRequestContext(tenant),
                         .identity = {absl::StrFormat("%016x", random_()), UnixSeconds()}};
  if (NamesModel(match.route->pattern)) {
    const RouteMatch own = MatchRoute(parts.request.method, parts.request.path);
    parts.context.deployment = std::string(own.parameter);
  }
  if (absl::Status status = ReadJsonBytes(parts.request, &parts.context); !status.ok()) {
    fail(status);
    return nullptr;
  }
  auto exchange =
      std::make_shared<PreparingExchange>(context_, inbox_, MakePreparation(std::move(parts)),
                                          writer, client, received, std::move(fail));
  exchange->Start(body_bytes);
  return exchange;
}

RequestContext ApiHandler::NewRequestContext(uint64_t tenant) {
  RequestContext context{context_->dependencies.model, context_->dependencies.codec, random_(),
                         context_->options.policy, tenant};
  context.adapters.registry = context_->dependencies.adapters;
  if (tenant != 0) {
    const std::shared_ptr<const AccessTable::Snapshot> keys = context_->access.current();
    const AccessTable::Entry* entry = keys->OfTenant(tenant);
    if (entry != nullptr) context.adapters.allowed = entry->key.adapters;
  }
  return context;
}

HttpResponse ApiHandler::Refuse(const absl::Status& status, std::string_view path) const {
  const ApiError error = ToApiError(status);
  return ErrorResponse(error, ErrorBodyFor(path, error), context_->options.cors_origin);
}

HttpResponse ApiHandler::MakeError(int status, std::string_view message, std::string_view path) {
  const ApiError error = TransportError(status, message);
  return ErrorResponse(error, ErrorBodyFor(path, error), context_->options.cors_origin);
}

// Scanners and probes cause many of these, so they are logged at the debugging level.
void ApiHandler::OnHandshakeFailed(std::string_view reason) {
  context_->dependencies.metrics->CountHandshakeFailure();
  context_->dependencies.log->Debug("TLS handshake failed", {{"reason", reason}});
}

void ApiHandler::OnRefused(Refusal refusal) {
  context_->dependencies.metrics->CountRefusal(RefusalName(refusal));
}

absl::Status ApiHandler::OnException(std::string_view place, std::string_view request_id) {
  return CaughtException(context_->dependencies, place, request_id);
}

void ApiHandler::OnFinished(const RequestRecord& record) {
  LogRequest(record, context_->dependencies, [this] { return random_(); });
}

}  // namespace heddle::server
