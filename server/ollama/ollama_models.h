// Ollama's routes about models: /api/tags, /api/ps, /api/show and /api/version.
// Functions only: any thread.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/openai/request_context.h"

namespace heddle::server {

// The version of Ollama's API that /api/version tells: clients that need a newer one refuse to
// work, and this one has tools in streams, schemas as formats, and thinking.
inline constexpr std::string_view kOllamaVersion = "0.12.11";

// {"models": [...]}: the model, its aliases, and the adapters that the client may use. TakesLong: a
// folder of adapters has to be read.
absl::StatusOr<std::string> OllamaTags(const RequestContext& context);

// {"models": [...]} of those in memory: the model under its one name.
std::string OllamaRunning(const RequestContext& context);

// Describes one model and its capabilities. NOT_FOUND (model_not_found): there is none of that
// name.
absl::StatusOr<std::string> OllamaShow(std::string_view body, const RequestContext& context);

// {"version": kOllamaVersion, "heddle": VERSION}
std::string OllamaVersionBody(std::string_view version);

}  // namespace heddle::server
