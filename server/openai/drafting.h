// The members of a request that concern drafts of its answer (engine/draft/): speculative, under
// our names and llama.cpp's, and OpenAI's prediction.
#pragma once

#include "absl/status/status.h"
#include "server/generation.h"
#include "server/openai/chat_fields.h"
#include "server/openai/request_context.h"
#include "server/request/request_fields.h"

namespace heddle::server {

// Reads them from a body whose fields have been checked. A server that drafts nothing takes them,
// too: they change no answer. `num_answers`: of all prompts; as with OpenAI, a prediction is one of
// a single answer.
absl::Status ReadDrafting(const RequestFields<fields::kGeneration>& body,
                          const RequestContext& context, size_t num_answers,
                          GenerationRequest* request);

}  // namespace heddle::server
