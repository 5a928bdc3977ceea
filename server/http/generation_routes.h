// Turns a generation route and a body into the request and the format of its answer. Private to
// server/http/.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/answer/answer_format.h"
#include "server/http/router.h"
#include "server/openai/openai_request.h"
#include "server/openai/responses_request.h"

namespace heddle::server {

// Whether requests of a route run on the engine.
bool IsGenerationRoute(RouteId id);
// Those of them whose answer is made of pooled hidden states.
bool IsEmbeddingRoute(RouteId id);

struct Generation {
  std::unique_ptr<ApiRequest> request;
  std::unique_ptr<AnswerFormat> format;  // points to *request
  // The whole answer, in place of both, where there is nothing to generate.
  std::string body = {};
  // An answer that is computed in the background: its id, its first events, and whether the client
  // wants to read them.
  struct Background {
    std::string id;
    std::string frames;
    bool stream = false;
  };
  std::optional<Background> background = {};
};

// Distinguishes this answer from all others.
struct AnswerIdentity {
  std::string unique;   // characters [0-9a-f]
  int64_t created = 0;  // seconds since 1970
};

// The id of an answer of /v1/completions or /v1/chat/completions.
std::string CompletionId(Endpoint endpoint, std::string_view unique);

// REQUIRES: IsGenerationRoute(id), except the embeddings route. `stores` outlive the format.
absl::StatusOr<Generation> ParseGeneration(RouteId id, std::string_view body,
                                           const RequestContext& context, AnswerIdentity identity,
                                           const ResponseStores& stores);

// The body of an error at a path: most have OpenAI's shape, /v1/messages, /api/ and /v2/models/
// have their own.
std::string ErrorBodyFor(std::string_view path, const ApiError& error);

}  // namespace heddle::server
