#include "server/http/router.h"

#include <algorithm>

namespace heddle::server {
namespace {

constexpr std::string_view kParameter = "{id}";

constexpr Route kRoutes[] = {
    {RouteId::kCompletions, "POST", "/v1/completions", true, "Continue a text"},
    {RouteId::kChatCompletions, "POST", "/v1/chat/completions", true, "Answer a conversation"},
    {RouteId::kModels, "GET", "/v1/models", true, "List the models"},
    {RouteId::kModel, "GET", "/v1/models/{id}", true, "Describe one model"},
    {RouteId::kTokenize, "POST", "/tokenize", true, "Text to token ids"},
    {RouteId::kDetokenize, "POST", "/detokenize", true, "Token ids to text"},
    {RouteId::kHealth, "GET", "/health", false, "Whether the engine makes progress"},
    {RouteId::kReady, "GET", "/ready", false, "Whether requests are accepted"},
    {RouteId::kMetrics, "GET", "/metrics", false, "Figures for Prometheus"},
    {RouteId::kDebugRequests, "GET", "/debug/requests", true, "What happened to requests"},
    {RouteId::kDebugRequest, "GET", "/debug/requests/{id}", true, "... to one, step by step"},
    {RouteId::kVersion, "GET", "/version", false, "Version of the server"},
    {RouteId::kStats, "GET", "/debug/stats", true, "What the server does now", true},
    {RouteId::kIndex, "GET", "/", false, "The web page; for other than browsers, what this is"},
};

bool PathMatches(std::string_view pattern, std::string_view path, std::string_view* parameter) {
  if (!pattern.ends_with(kParameter)) return pattern == path;
  pattern.remove_suffix(kParameter.size());
  if (!path.starts_with(pattern) || path.size() == pattern.size()) return false;
  *parameter = path.substr(pattern.size());
  return true;
}

}  // namespace

std::span<const Route> Routes() { return kRoutes; }

RouteMatch MatchRoute(std::string_view method, std::string_view path) {
  if (method == "HEAD") method = "GET";
  RouteMatch match;
  for (const Route& route : kRoutes) {
    std::string_view parameter;
    if (!PathMatches(route.pattern, path, &parameter)) continue;
    if (route.method == method) return {&route, parameter, ""};
    if (!match.allow.empty()) match.allow.append(", ");
    match.allow.append(route.method);
    if (route.method == "GET") match.allow.append(", HEAD");
  }
  if (!match.allow.empty()) match.allow.append(", OPTIONS");
  return match;
}

}  // namespace heddle::server
