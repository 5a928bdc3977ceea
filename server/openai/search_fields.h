// The member "search" of a request: several samples, of which one is the answer
// (server/answer/sample_search.h).
#pragma once

#include <string>

#include "absl/status/status.h"
#include "server/openai/chat_fields.h"
#include "server/openai/request_context.h"
#include "server/request/json_input.h"
#include "server/request/request_fields.h"

namespace heddle::server {

// Reads it from a body whose fields have been checked, and sets `api`'s number of samples.
// INVALID_ARGUMENT also if the request asks for what does not go with it.
absl::Status ReadSearch(const RequestFields<fields::kGeneration>& body, size_t num_prompts,
                        const RequestPolicy& policy, ApiRequest* api);

// The text of a chat's last message of a user, which a reward model compares answers with; empty:
// there is none.
std::string LastQuestion(const Json& messages);

}  // namespace heddle::server
