// Metadata of the server and its model, as the Open Inference Protocol has it.
// Functions only: any thread.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/openai/request_context.h"

namespace heddle::server {

// {"name", "version", "extensions"}
std::string KserveServer(std::string_view version);

// The model's tensors. NOT_FOUND (model_not_found): there is none of that name.
absl::StatusOr<std::string> KserveModel(const std::string& name, const RequestContext& context);

// {"name", "ready": true}, or NOT_FOUND.
absl::StatusOr<std::string> KserveModelReady(const std::string& name,
                                             const RequestContext& context);

}  // namespace heddle::server
