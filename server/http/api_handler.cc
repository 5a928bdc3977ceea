#include "server/http/api_handler.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "base/message.h"
#include "base/status.h"
#include "server/http/debug_routes.h"
#include "server/http/generation_routes.h"
#include "server/http/openapi.h"
#include "server/http/page_origin.h"
#include "server/http/preparation.h"
#include "server/http/preparing_exchange.h"
#include "server/http/request_spans.h"
#include "server/http/response_routes.h"
#include "server/json_writer.h"
#include "server/openai/tokenize.h"

namespace heddle::server {
namespace {

// For log lines: to the microsecond; -1 where there is no such time.
double Milliseconds(double seconds) { return seconds < 0 ? -1 : std::round(seconds * 1e6) / 1e3; }

int64_t UnixSeconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

HttpResponse JsonResponse(std::string body) {
  HttpResponse response;
  response.body = std::move(body);
  return response;
}

HttpResponse TextResponse(std::string_view content_type, std::string body) {
  HttpResponse response;
  response.content_type = std::string(content_type);
  response.body = std::move(body);
  return response;
}

std::string StatusJson(std::string_view status) {
  std::string out;
  JsonWriter(&out).BeginObject().Member("status", status).EndObject();
  return out;
}

// Asked for every few seconds by machines, which nobody wants to read of.
bool IsProbe(RouteId id) {
  return id == RouteId::kHealth || id == RouteId::kReady || id == RouteId::kMetrics;
}

// What a page of another origin may read of an answer.
constexpr std::string_view kExposedHeaders =
    "X-Request-Id, X-Heddle-Warning, Retry-After, x-ratelimit-limit-requests, "
    "x-ratelimit-remaining-requests, x-ratelimit-reset-requests, x-ratelimit-limit-tokens, "
    "x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens";

// The headers that a page asks to send: clients in browsers have many of their own (x-stainless-os,
// anthropic-version), and none changes what a request may do. What is no list of names is not
// repeated.
std::string AllowedHeaders(const HttpRequest& request) {
  constexpr size_t kMaxBytes = 2048;
  std::string_view asked = request.Header("Access-Control-Request-Headers");
  const auto fits = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == ',' ||
           c == ' ';
  };
  if (!asked.empty() && asked.size() <= kMaxBytes &&
      std::all_of(asked.begin(), asked.end(), fits)) {
    return std::string(asked);
  }
  return "Authorization, Content-Type, X-Api-Key, X-Request-Id";
}

// Base URLs often have the "/v1" that the client adds by itself, lack the one that it does not add,
// or end in a slash.
std::string PathHint(std::string_view method, std::string_view path) {
  constexpr std::string_view kVersion = "/v1";
  while (path.ends_with('/')) path.remove_suffix(1);
  const std::string_view shorter =
      path.starts_with(kVersion) ? path.substr(kVersion.size()) : std::string_view();
  for (const std::string& meant :
       {std::string(path), base::StrCat(kVersion, path), std::string(shorter)}) {
    if (MatchRoute(method, meant).route == nullptr) continue;
    return base::StrCat("; did you mean ", base::Quote(meant), "?");
  }
  return "";
}

int64_t UnixNanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

absl::Status EngineHasFailed() {
  return absl::UnavailableError("the engine has failed; see the log, and restart the server");
}

}  // namespace

ApiHandler::ApiHandler(ServerContext* context, PostTask post)
    : context_(context),
      inbox_(std::make_shared<EventInbox>(std::move(post))),
      random_((static_cast<uint64_t>(std::random_device{}()) << 32) | std::random_device{}()) {}

ApiHandler::~ApiHandler() { inbox_->Close(); }

std::shared_ptr<Exchange> ApiHandler::Handle(HttpRequest request, ResponseWriter* writer) {
  RouteMatch match = MatchRoute(request.method, request.path);
  writer->record().route = match.route == nullptr ? "other" : std::string(match.route->pattern);
  writer->record().trace = Trace(match.route, request);
  if (match.route == nullptr) {
    writer->Send(NoRoute(match, request));
    return nullptr;
  }
  absl::StatusOr<uint64_t> tenant = match.route->needs_key ? CheckKey(*match.route, request) : 0;
  // With a key, whatever page sent it was given the key: browsers add none by themselves.
  if (tenant.ok() && *tenant == 0) {
    absl::Status allowed =
        CheckPageOrigin(request, context_->options.cors_origin, IsLoopback(context_->options.host));
    if (!allowed.ok()) tenant = allowed;
  }
  if (tenant.ok() && match.route->method == "POST") {
    absl::Status admitted = Admit(*tenant, request, &writer->record());
    if (!admitted.ok()) tenant = admitted;
  }
  if (!tenant.ok()) {
    writer->Send(ErrorResponse(ToApiError(tenant.status()), request.path));
    return nullptr;
  }
  if (NeedsPreparation(match.route->id)) {
    return Prepare(match.route->id, *tenant, std::move(request), writer);
  }
  absl::StatusOr<HttpResponse> response = Respond(match, *tenant, request);
  if (response.ok()) {
    Decorate(&*response);
    writer->Send(*std::move(response));
  } else {
    writer->Send(ErrorResponse(ToApiError(response.status()), request.path));
  }
  return nullptr;
}

// The caller's trace, or, where spans are made, a new one; with a span for requests that do work.
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

// The thread's other clients do not wait for it: preparing_exchange.h.
std::shared_ptr<Exchange> ApiHandler::Prepare(RouteId route, uint64_t tenant, HttpRequest request,
                                              ResponseWriter* writer) {
  const Clock::time_point received = request.received;
  const size_t body_bytes = request.body.size();
  auto fail = [this, writer, path = request.path](const absl::Status& status) {
    writer->Send(ErrorResponse(ToApiError(status), path));
  };
  if (IsGenerationRoute(route)) {
    if (const absl::Status serving = CheckServing(); !serving.ok()) {
      fail(serving);
      return nullptr;
    }
  }
  PreparationParts parts{.server = context_,
                         .inbox = inbox_.get(),
                         .writer = writer,
                         .route = route,
                         .request = std::move(request),
                         .context = NewRequestContext(tenant),
                         .identity = {absl::StrFormat("%016x", random_()), UnixSeconds()},
                         .decorate = [this](HttpResponse* response) { Decorate(response); }};
  auto exchange = std::make_shared<PreparingExchange>(
      context_, inbox_, MakePreparation(std::move(parts)), writer, received, std::move(fail));
  exchange->Start(body_bytes);
  return exchange;
}

absl::StatusOr<HttpResponse> ApiHandler::Respond(const RouteMatch& match, uint64_t tenant,
                                                 const HttpRequest& request) {
  const ServedModel& model = *context_->dependencies.model;
  switch (match.route->id) {
    case RouteId::kHealth:
      return Health();
    case RouteId::kReady: {
      HEDDLE_RETURN_IF_ERROR(CheckReady());
      HEDDLE_RETURN_IF_ERROR(CheckEngine());
      return JsonResponse(StatusJson("ready"));
    }
    case RouteId::kMetrics:
      return TextResponse(ServerMetrics::kContentType, Metrics());
    case RouteId::kModels:
      return JsonResponse(ModelList(model));
    case RouteId::kModel: {
      HEDDLE_ASSIGN_OR_RETURN(std::string card, ModelCard(match.parameter, model));
      return JsonResponse(std::move(card));
    }
    case RouteId::kDebugRequests:
      return JsonResponse(RequestsJson(*context_->dependencies.generation));
    case RouteId::kDebugRequest: {
      HEDDLE_ASSIGN_OR_RETURN(std::string body,
                              RequestJson(*context_->dependencies.generation, match.parameter));
      return JsonResponse(std::move(body));
    }
    case RouteId::kVersion: {
      std::string out;
      JsonWriter(&out).BeginObject().Member("version", context_->options.version).EndObject();
      return JsonResponse(std::move(out));
    }
    case RouteId::kIndex:
      return Index(request);
    case RouteId::kStats:
      return JsonResponse(context_->dependencies.metrics->RenderJson(
          context_->dependencies.generation->Stats(), connections()));
    case RouteId::kResponse:
    case RouteId::kDeleteResponse:
    case RouteId::kInputItems:
    case RouteId::kCancelResponse: {
      HEDDLE_ASSIGN_OR_RETURN(std::string body,
                              AnswerAboutResponse(match.route->id, match.parameter, tenant,
                                                  request.query, &context_->responses));
      return JsonResponse(std::move(body));
    }
    case RouteId::kOpenApi:
      return JsonResponse(OpenApiDocument(context_->options.version));
    case RouteId::kCompletions:
    case RouteId::kChatCompletions:
    case RouteId::kResponses:
    case RouteId::kMessages:
    case RouteId::kEmbeddings:
    case RouteId::kScore:
    case RouteId::kRerank:
    case RouteId::kTokenize:
    case RouteId::kDetokenize:
    case RouteId::kCountTokens:
    case RouteId::kInputTokens:
      break;
  }
  return absl::InternalError("this route has no answer");
}

std::string ApiHandler::Metrics() const {
  return context_->dependencies.metrics->Render(context_->dependencies.generation->Stats(),
                                                connections(), context_->options.metric_names);
}

ConnectionFigures ApiHandler::connections() const {
  const Transport* transport = context_->transport.load();
  if (transport == nullptr) return {};
  return {.open = transport->open_connections(), .unsent_bytes = transport->unsent_bytes()};
}

HttpResponse ApiHandler::Index(const HttpRequest& request) const {
  HttpResponse response;
  if (AcceptsHtml(request.Header("Accept"))) {
    response = TextResponse("text/html; charset=utf-8", std::string(context_->page.html));
    response.headers.emplace_back("Content-Security-Policy", context_->page.security_policy);
    response.headers.emplace_back("X-Content-Type-Options", "nosniff");
    response.headers.emplace_back("Referrer-Policy", "no-referrer");
  } else {
    response = TextResponse("text/plain; charset=utf-8",
                            base::StrCat("Heddle ", context_->options.version, " serves ",
                                         context_->dependencies.model->id,
                                         ": POST /v1/chat/completions, POST /v1/completions, "
                                         "POST /v1/responses, POST /v1/messages\n"));
  }
  response.headers.emplace_back("Vary", "Accept");
  return response;
}

// The truth about the engine: a step that does not end means that nobody is served.
absl::Status ApiHandler::CheckEngine() const {
  EngineStats stats = context_->dependencies.generation->Stats();
  if (stats.state == EngineState::kFailed) {
    return EngineHasFailed();
  }
  double busy = stats.busy_since_seconds;
  double limit = std::chrono::duration<double>(context_->options.step_timeout).count();
  if (busy <= limit) return absl::OkStatus();
  return absl::UnavailableError(absl::StrFormat(
      "requests wait and no step has ended for %.1f s; the limit is %.1f s", busy, limit));
}

absl::StatusOr<HttpResponse> ApiHandler::Health() const {
  HEDDLE_RETURN_IF_ERROR(CheckEngine());
  return JsonResponse(StatusJson("ok"));
}

absl::Status ApiHandler::CheckReady() const {
  HEDDLE_RETURN_IF_ERROR(CheckServing());
  if (context_->readiness.load() != Readiness::kLeaving) return absl::OkStatus();
  return absl::UnavailableError("the server is about to shut down; send requests elsewhere");
}

absl::Status ApiHandler::CheckServing() const {
  switch (context_->readiness.load()) {
    case Readiness::kLoading:
      return absl::UnavailableError("the model is still loading");
    case Readiness::kDraining:
      return absl::UnavailableError("the server is shutting down");
    case Readiness::kReady:
    case Readiness::kLeaving:
      break;
  }
  if (context_->dependencies.generation->Stats().state != EngineState::kFailed) {
    return absl::OkStatus();
  }
  return EngineHasFailed();
}

absl::StatusOr<uint64_t> ApiHandler::CheckKey(const Route& route,
                                              const HttpRequest& request) const {
  const KeyRing& keys = context_->keys;
  if (keys.empty()) return 0;
  constexpr std::string_view kBearer = "Bearer ";
  std::string_view given = request.Header("Authorization");
  if (EqualsIgnoringCase(given.substr(0, kBearer.size()), kBearer)) {
    given.remove_prefix(kBearer.size());
  } else {
    given = request.Header("X-Api-Key");  // Anthropic's clients
  }
  const int number = given.empty() ? -1 : keys.Find(given);
  // With admin keys alone everyone may ask, except for what needs such a key.
  const bool open = !route.needs_admin && !keys.has_ordinary();
  if (number < 0 && !open) {
    return WithCode(absl::UnauthenticatedError(
                        "this server needs an API key: send 'Authorization: Bearer KEY'"),
                    "invalid_api_key");
  }
  if (route.needs_admin && !keys.keys()[static_cast<size_t>(number)].admin) {
    return absl::PermissionDeniedError(
        "this shows more than one client's requests and needs an admin key (--admin-key, or "
        "`admin` in the key file)");
  }
  return static_cast<uint64_t>(number + 1);
}

absl::Status ApiHandler::Admit(uint64_t tenant, const HttpRequest& request,
                               RequestRecord* record) const {
  const auto enter = [record, &request](const std::shared_ptr<KeyAccount>& account) {
    absl::Status status = account->Admit(request.received);
    if (status.ok()) record->accounts.push_back(account);
    account->AppendHeaders(request.received, &record->answer_headers);
    return status;
  };
  if (tenant > 0) {
    record->key_name = context_->keys.keys()[tenant - 1].name;
    HEDDLE_RETURN_IF_ERROR(enter(context_->accounts[tenant - 1]));
  }
  return enter(context_->everyone);
}

HttpResponse ApiHandler::NoRoute(const RouteMatch& match, const HttpRequest& request) const {
  if (match.allow.empty() && request.path != "*") {
    return ErrorResponse(
        TransportError(404, base::StrCat("there is nothing at ", base::Quote(request.path),
                                         PathHint(request.method, request.path))),
        request.path);
  }
  HttpResponse response;
  if (request.method == "OPTIONS") {
    response.status = 204;
    Decorate(&response);
  } else {
    response =
        ErrorResponse(TransportError(405, base::StrCat(request.path, " takes ", match.allow,
                                                       ", not ", base::Quote(request.method))),
                      request.path);
  }
  std::string allow = match.allow.empty() ? "GET, HEAD, POST, OPTIONS" : match.allow;
  if (request.method == "OPTIONS" && !context_->options.cors_origin.empty()) {
    response.headers.emplace_back("Access-Control-Allow-Methods", allow);
    response.headers.emplace_back("Access-Control-Allow-Headers", AllowedHeaders(request));
    response.headers.emplace_back("Access-Control-Max-Age", "600");
  }
  response.headers.emplace_back("Allow", std::move(allow));
  return response;
}

HttpResponse ApiHandler::ErrorResponse(const ApiError& error, std::string_view path) const {
  HttpResponse response;
  response.status = error.http_status;
  response.body = ErrorBodyFor(path, error);
  if (error.retry_after_seconds > 0) {
    response.headers.emplace_back("Retry-After", std::to_string(error.retry_after_seconds));
  }
  if (error.http_status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  Decorate(&response);
  return response;
}

HttpResponse ApiHandler::MakeError(int status, std::string_view message, std::string_view path) {
  return ErrorResponse(TransportError(status, message), path);
}

void ApiHandler::Decorate(HttpResponse* response) const {
  const std::string& origin = context_->options.cors_origin;
  if (origin.empty()) return;
  response->headers.emplace_back("Access-Control-Allow-Origin", origin);
  response->headers.emplace_back("Access-Control-Expose-Headers", kExposedHeaders);
  if (origin != "*") response->headers.emplace_back("Vary", "Origin");
}

RequestContext ApiHandler::NewRequestContext(uint64_t tenant) {
  return {context_->dependencies.model, context_->dependencies.codec, random_(),
          context_->options.policy, tenant};
}

// Scanners and probes come by in numbers: the log has them at the level for who looks for a cause.
void ApiHandler::OnHandshakeFailed(std::string_view reason) {
  context_->dependencies.metrics->CountHandshakeFailure();
  context_->dependencies.log->Debug("TLS handshake failed", {{"reason", reason}});
}

void ApiHandler::OnFinished(const RequestRecord& record) {
  for (const std::shared_ptr<KeyAccount>& account : record.accounts) {
    account->Finish(record.prompt_tokens + record.generated_tokens, Clock::now());
  }
  std::string_view route = record.route.empty() ? std::string_view("other") : record.route;
  ServerMetrics* metrics = context_->dependencies.metrics;
  metrics->CountRequest(route, record.method, record.status);
  const Route* known = RouteNamed(route);
  if (known != nullptr && IsGenerationRoute(known->id)) {
    metrics->CountGeneration(route, OutcomeName(record.outcome), record.total_seconds);
  }
  if (SpanExporter* spans = context_->dependencies.spans;
      record.trace.sampled && !record.trace.span_id.empty()) {
    spans->Export(RequestSpans(record, context_->dependencies.model->id, UnixNanoseconds(),
                               [this] { return random_(); }));
  }
  const Logger& log = *context_->dependencies.log;
  const Logger::Fields fields = {{"method", record.method},
                                 {"path", record.path},
                                 {"status", static_cast<int64_t>(record.status)},
                                 {"outcome", OutcomeName(record.outcome)},
                                 {"key", record.key_name},
                                 {"prompt_tokens", record.prompt_tokens},
                                 {"generated_tokens", record.generated_tokens},
                                 {"ttft_ms", Milliseconds(record.first_token_seconds)},
                                 {"total_ms", Milliseconds(record.total_seconds)},
                                 {"trace_id", record.trace.trace_id},
                                 {"span_id", record.trace.span_id},
                                 {"request_id", record.request_id}};
  const bool is_probe = known != nullptr && IsProbe(known->id) && record.status == 200;
  is_probe ? log.Debug("request", fields) : log.Info("request", fields);
}

}  // namespace heddle::server
