// The member "parallel" of a request: answers whose model thinks in branches
// (server/parallel/parallel_format.h).
#pragma once

#include "absl/status/status.h"
#include "server/openai/chat_fields.h"
#include "server/openai/request_context.h"
#include "server/request/request_fields.h"

namespace heddle::server {

// Reads it from a body whose fields have been checked; `api` has its generations. INVALID_ARGUMENT
// also if the request asks for what does not go with branches.
absl::Status ReadParallel(const RequestFields<fields::kGeneration>& body,
                          const RequestContext& context, ApiRequest* api);

}  // namespace heddle::server
