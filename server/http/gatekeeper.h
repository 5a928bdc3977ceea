// Decides by the header alone whether a request is allowed: its API key, the web page that sent it,
// and the limits of its key and of the server. Private to server/http/.
// Thread-safety: any thread.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/http/exchange.h"
#include "server/http/http_message.h"
#include "server/http/router.h"
#include "server/http/server_context.h"

namespace heddle::server {

// The tenant of the request's API key; 0 if none is needed. UNAUTHENTICATED: a key is missing or
// unknown. PERMISSION_DENIED: it is not an admin key, or the page belongs to another site.
absl::StatusOr<uint64_t> CheckSender(const ServerContext& server, const Route& route,
                                     const HttpRequest& request);

// Charges a request that does work (POST) to the limits of its key and of the server, and adds
// their headers to the answer's. RESOURCE_EXHAUSTED: it is beyond one of them.
absl::Status Admit(const ServerContext& server, uint64_t tenant, const HttpRequest& request,
                   RequestRecord* record);

}  // namespace heddle::server
