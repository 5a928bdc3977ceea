// The routes of responses that are kept: retrieving one, deleting it, listing its input items, and
// cancelling it. Private to server/http/.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/http/router.h"
#include "server/openai/response_store.h"

namespace heddle::server {

struct ServerContext;

// `query` as received. NOT_FOUND if the response is unknown, was forgotten or belongs to another
// client; INVALID_ARGUMENT for an invalid query. REQUIRES: `id` is one of kResponse,
// kDeleteResponse, kCancelResponse and kInputItems.
absl::StatusOr<std::string> AnswerAboutResponse(RouteId id, std::string_view response_id,
                                                uint64_t tenant, std::string_view query,
                                                ServerContext* server);

// A query that ParseQuery (http_message.h) cannot read.
absl::Status BrokenQuery();

}  // namespace heddle::server
