// /tokenize, /detokenize and /v1/models: JSON text to JSON text.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/openai/request_context.h"

namespace heddle::server {

// Converts {"prompt" or "content": text, "add_special_tokens"} or {"messages", "tools", ...} to
// {"tokens":[...],"count":n,"max_model_len":n}.
absl::StatusOr<std::string> Tokenize(std::string_view body, const RequestContext& context);

// Converts {"tokens":[...]} to {"prompt":text}. Special tokens keep their names.
absl::StatusOr<std::string> Detokenize(std::string_view body, const RequestContext& context);

// {"object":"list","data":[...]} with the model and its aliases.
std::string ModelList(const ServedModel& model);

// One entry of the list; NOT_FOUND (model_not_found) for another name.
absl::StatusOr<std::string> ModelCard(std::string_view name, const ServedModel& model);

}  // namespace heddle::server
