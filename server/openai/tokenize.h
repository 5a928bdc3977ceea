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

// {"object":"list","data":[...]} with the model, its aliases, and the adapters that the client may
// use: with `parent`, and with `root`, their path. TakesLong: a folder of adapters has to be read.
absl::StatusOr<std::string> ModelList(const RequestContext& context);

// One entry of the list; NOT_FOUND (model_not_found) for another name.
absl::StatusOr<std::string> ModelCard(const std::string& name, const RequestContext& context);

}  // namespace heddle::server
