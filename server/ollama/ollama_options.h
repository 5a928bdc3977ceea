// "options" of Ollama's requests, as fields of a chat or completion.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "server/ollama/ollama_fields.h"
#include "server/openai/request_context.h"
#include "server/openai/request_parts.h"

namespace heddle::server {

// Sets the fields of `*body` that the options name. Returns what the client should know of options
// that have no effect; empty: nothing.
std::string AddOllamaOptions(const RequestFields<fields::kOllamaOptions>& options,
                             const RequestContext& context, Json* body);

// An error about a chat or completion, with the names that Ollama's fields have.
absl::Status InOllamasWords(absl::Status status);

// The name of a model without the tag ":latest", which Ollama's clients add, unless the model has
// that name.
std::string WithoutLatest(const std::string& name, const ServedModel& model);

}  // namespace heddle::server
