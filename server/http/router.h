// Which function answers which path. A table, so that the 404 and 405 answers, OPTIONS, metrics and
// documentation all come from one place.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace heddle::server {

enum class RouteId : uint8_t {
  kIndex,
  kHealth,
  kReady,
  kMetrics,
  kVersion,
  kStats,
  kDebugRequests,
  kDebugRequest,
  kModels,
  kModel,
  kCompletions,
  kChatCompletions,
  kResponses,
  kResponse,
  kDeleteResponse,
  kInputItems,
  kCancelResponse,
  kInputTokens,
  kMessages,
  kCountTokens,
  kEmbeddings,
  kScore,
  kRerank,
  kOpenApi,
  kTokenize,
  kDetokenize,
};

struct Route {
  RouteId id;
  std::string_view method;  // HEAD is answered wherever GET is
  // A last "{id}" matches the rest of the path; a response's, wherever it stands: a segment. Where
  // a whole path is a pattern, it is no other's id.
  std::string_view pattern;
  bool needs_key;  // where API keys are set
  std::string_view summary;
  bool needs_admin = false;  // shows more than one client's own
};

std::span<const Route> Routes();

struct RouteMatch {
  const Route* route = nullptr;  // null: see allow
  std::string_view parameter;    // what "{id}" matched; a view into `path`
  std::string allow;  // methods of this path, as for the Allow header; empty: no such path
};

// By its pattern, of several methods the first; nullptr: none.
const Route* RouteNamed(std::string_view pattern);

RouteMatch MatchRoute(std::string_view method, std::string_view path);

}  // namespace heddle::server
