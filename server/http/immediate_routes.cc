#include "server/http/immediate_routes.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/message.h"
#include "base/status.h"
#include "server/http/debug_routes.h"
#include "server/http/openapi.h"
#include "server/http/probes.h"
#include "server/http/response_routes.h"
#include "server/http/responses.h"
#include "server/json_writer.h"
#include "server/kserve/kserve_models.h"
#include "server/llamacpp/llama_server.h"
#include "server/ollama/ollama_models.h"

namespace heddle::server {
namespace {

// Writes {"NAME": "TEXT"}.
HttpResponse OneMember(std::string_view name, std::string_view text) {
  HttpResponse response;
  JsonWriter(&response.body).BeginObject().Member(name, text).EndObject();
  return response;
}

HttpResponse Index(const HttpRequest& request, const ServerContext& server) {
  HttpResponse response;
  if (AcceptsHtml(request.Header("Accept"))) {
    response = TextResponse("text/html; charset=utf-8", server.page.html);
    response.headers.emplace_back("Content-Security-Policy", server.page.security_policy);
    response.headers.emplace_back("X-Content-Type-Options", "nosniff");
    response.headers.emplace_back("Referrer-Policy", "no-referrer");
  } else {
    const std::string_view routes =
        server.dependencies.codec->has_chat_template()
            ? "POST /v1/chat/completions, POST /v1/completions, POST /v1/responses, "
              "POST /v1/messages\n"
            : "POST /v1/completions (the model has no chat template)\n";
    response = TextResponse("text/plain; charset=utf-8",
                            base::StrCat("Heddle ", server.options.version, " serves ",
                                         server.dependencies.model->id, ": ", routes));
  }
  response.headers.emplace_back("Vary", "Accept");
  return response;
}

// The JSON text for routes whose whole answer it is.
absl::StatusOr<std::string> JsonOf(const RouteMatch& match, uint64_t tenant,
                                   const HttpRequest& request, ServerContext* server) {
  const GenerationService& generation = *server->dependencies.generation;
  switch (match.route->id) {
    case RouteId::kDebugRequests:
      return RequestsJson(generation);
    case RouteId::kDebugRequest:
      return RequestJson(generation, match.parameter);
    case RouteId::kStats:
      return StatsJson(*server);
    case RouteId::kDeleteResponse:
    case RouteId::kInputItems:
    case RouteId::kCancelResponse:
      return AnswerAboutResponse(match.route->id, match.parameter, tenant, request.query, server);
    case RouteId::kLlamaSlots: {
      std::vector<QueryParameter> query;
      if (!ParseQuery(request.query, &query)) return BrokenQuery();
      return LlamaSlots(generation.Stats(), *server->dependencies.model, query);
    }
    case RouteId::kKserve:
      return KserveServer(server->options.version);
    case RouteId::kOllamaVersion:
      return OllamaVersionBody(server->options.version);
    case RouteId::kOpenApi:
      return OpenApiDocument(server->options.version);
    default:
      return absl::InternalError("this route has no answer");
  }
}

}  // namespace

absl::StatusOr<HttpResponse> AnswerAtOnce(const RouteMatch& match, uint64_t tenant,
                                          const HttpRequest& request, ServerContext* server) {
  switch (match.route->id) {
    case RouteId::kIndex:
      return Index(request, *server);
    case RouteId::kVersion:
      return OneMember("version", server->options.version);
    case RouteId::kHealth:
    case RouteId::kKserveLive:
      HEDDLE_RETURN_IF_ERROR(CheckEngine(*server));
      return OneMember("status", "ok");
    case RouteId::kReady:
    case RouteId::kKserveReady:
      HEDDLE_RETURN_IF_ERROR(CheckReady(*server));
      return OneMember("status", "ready");
    case RouteId::kMetrics:
      return TextResponse(ServerMetrics::kContentType, MetricsText(*server));
    default:
      break;
  }
  HEDDLE_ASSIGN_OR_RETURN(std::string body, JsonOf(match, tenant, request, server));
  return JsonResponse(std::move(body));
}

}  // namespace heddle::server
