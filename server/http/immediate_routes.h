// Routes that are answered as soon as their request has arrived, because nothing of them needs
// separate preparation (preparation.h). Private to server/http/.
//
// Thread-safety: any thread; what it reads of the server is safe by itself (server_context.h).
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "server/http/http_message.h"
#include "server/http/router.h"
#include "server/http/server_context.h"

namespace heddle::server {

// The answer without CORS headers. REQUIRES: match.route is not null, and not NeedsPreparation.
absl::StatusOr<HttpResponse> AnswerAtOnce(const RouteMatch& match, uint64_t tenant,
                                          const HttpRequest& request, ServerContext* server);

}  // namespace heddle::server
