// The members of a request that say how it is served beside others: priority, deadline_ms,
// workflow. Which of them count is the server's --policy. And cache_salt: with whom it shares
// computed prompts.
#pragma once

#include "absl/status/status.h"
#include "server/generation.h"
#include "server/openai/json_input.h"
#include "server/openai/openai_request.h"

namespace heddle::server {

// Reads them from a body whose fields have been checked, and sets the tenant. A member that asks
// for something that the server's policy does not do is an error that names the policy it would
// need.
absl::Status ReadScheduling(const Json& body, const RequestContext& context,
                            GenerationRequest* request);

}  // namespace heddle::server
