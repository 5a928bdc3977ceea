// The member "branches" of a request: how each of its n choices is drawn, where that differs.
// Thread-safety: pure functions.
#pragma once

#include "absl/status/status.h"
#include "server/answer/api_request.h"
#include "server/openai/chat_fields.h"
#include "server/request/request_fields.h"

namespace heddle::server {

// Sets the parameters of each choice of the one prompt, from the request's. REQUIRES: everything
// else has been read. INVALID_ARGUMENT: not one object for each choice, or a request without such
// choices.
absl::Status ReadChoices(const RequestFields<fields::kGeneration>& body, ApiRequest* api);

}  // namespace heddle::server
