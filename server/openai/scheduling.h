// The members of a request that affect how it is served beside others: priority, deadline_ms,
// workflow (the server's --policy decides which of them count), and cache_salt, which decides with
// whom it shares computed prompts.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "server/generation.h"
#include "server/openai/chat_fields.h"
#include "server/openai/request_context.h"
#include "server/request/request_fields.h"

namespace heddle::server {

// The space of the prefix cache that a salt stands for; 0 without one (nullptr).
uint64_t CacheSpace(const std::string* salt);

// Reads them from a body whose fields have been checked, and sets the tenant. A member that the
// server's policy does not support is an error that names the policy it needs.
absl::Status ReadScheduling(const RequestFields<fields::kGeneration>& body,
                            const RequestContext& context, GenerationRequest* request);

}  // namespace heddle::server
