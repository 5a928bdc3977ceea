// Records a finished request: its key's account, metrics, spans and the line of the log. Private to
// server/http/.
// Thread-safety: any thread.
#pragma once

#include <cstdint>
#include <functional>

#include "server/http/exchange.h"
#include "server/http/http_server.h"

namespace heddle::server {

// `random`: random bits for the ids of spans.
void LogRequest(const RequestRecord& record, const HttpDependencies& server,
                const std::function<uint64_t()>& random);

}  // namespace heddle::server
