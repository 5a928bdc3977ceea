#include "server/http/responses.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "base/message.h"
#include "server/http/generation_routes.h"

namespace heddle::server {
namespace {

// Headers of an answer that a page of another origin may read.
constexpr std::string_view kExposedHeaders =
    "X-Request-Id, X-Heddle-Warning, Retry-After, x-ratelimit-limit-requests, "
    "x-ratelimit-remaining-requests, x-ratelimit-reset-requests, x-ratelimit-limit-tokens, "
    "x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens";

// The headers that a page asks to send: clients in browsers have many of their own (x-stainless-os,
// anthropic-version), and none changes what a request may do. Anything but a list of names is not
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

// A hint for base URLs that have a "/v1" which the client also adds, lack one that it does not add,
// or end in a slash.
std::string PathHint(std::string_view method, std::string_view given) {
  constexpr std::string_view kVersion = "/v1";
  std::string once;  // with one slash where several follow each other
  once.reserve(given.size());
  for (const char c : given) {
    if (c != '/' || !once.ends_with('/')) once.push_back(c);
  }
  std::string_view path = once;
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

}  // namespace

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

void AddCorsHeaders(std::string_view cors_origin, HttpResponse* response) {
  if (cors_origin.empty()) return;
  response->headers.emplace_back("Access-Control-Allow-Origin", cors_origin);
  response->headers.emplace_back("Access-Control-Expose-Headers", kExposedHeaders);
  if (cors_origin != "*") response->headers.emplace_back("Vary", "Origin");
}

HttpResponse ErrorResponse(const ApiError& error, std::string body, std::string_view cors_origin) {
  HttpResponse response;
  response.status = error.http_status;
  response.body = std::move(body);
  if (error.retry_after_seconds > 0) {
    response.headers.emplace_back("Retry-After", std::to_string(error.retry_after_seconds));
  }
  if (error.http_status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  AddCorsHeaders(cors_origin, &response);
  return response;
}

HttpResponse NoRouteResponse(const RouteMatch& match, const HttpRequest& request,
                             std::string_view cors_origin) {
  const auto refuse = [&](int status, std::string_view message) {
    const ApiError error = TransportError(status, message);
    return ErrorResponse(error, ErrorBodyFor(request.path, error), cors_origin);
  };
  if (match.allow.empty() && request.path != "*") {
    return refuse(404, base::StrCat("there is nothing at ", base::Quote(request.path),
                                    PathHint(request.method, request.path)));
  }
  HttpResponse response;
  if (request.method == "OPTIONS") {
    response.status = 204;
    AddCorsHeaders(cors_origin, &response);
  } else {
    // Only "*", which stands for the whole server, is known without a method of its own.
    const std::string_view taken = match.allow.empty() ? "OPTIONS" : std::string_view(match.allow);
    response = refuse(
        405, base::StrCat(request.path, " takes ", taken, ", not ", base::Quote(request.method)));
  }
  std::string allow = match.allow.empty() ? "GET, HEAD, POST, OPTIONS" : match.allow;
  if (request.method == "OPTIONS" && !cors_origin.empty()) {
    response.headers.emplace_back("Access-Control-Allow-Methods", allow);
    response.headers.emplace_back("Access-Control-Allow-Headers", AllowedHeaders(request));
    response.headers.emplace_back("Access-Control-Max-Age", "600");
  }
  response.headers.emplace_back("Allow", std::move(allow));
  return response;
}

}  // namespace heddle::server
