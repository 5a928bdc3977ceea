// Ollama's /api/chat and /api/generate as requests of this server: a chat, or a completion where
// the prompt is raw, has a suffix, or the model has no chat template.
// Pure: no socket, no clock. Any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/answer/api_request.h"
#include "server/openai/request_context.h"

namespace heddle::server {

struct OllamaRequest {
  std::optional<ApiRequest> api;  // empty: the client only asks that the model be loaded
  std::string model;              // its name as the client wrote it
};

// INVALID_ARGUMENT or NOT_FOUND, with messages that name Ollama's fields.
absl::StatusOr<OllamaRequest> ParseOllamaChat(std::string_view body, const RequestContext& context);
absl::StatusOr<OllamaRequest> ParseOllamaGenerate(std::string_view body,
                                                  const RequestContext& context);

}  // namespace heddle::server
