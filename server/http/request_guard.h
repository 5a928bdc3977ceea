// Handles exceptions in a request's path. We throw none, but libraries do, and memory may run out:
// they are caught where the request enters a thread, and fail only that request.
// Thread-safety: any thread.
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "server/http/http_server.h"

namespace heddle::server {

// The present exception as a status for its request's client: UNAVAILABLE if out of memory, and
// INTERNAL for all else. It writes a log line and counts it (heddle_request_exceptions_total). The
// line has the exception's type and `place`, but not its text, which may contain parts of the
// request.
// REQUIRES: within a catch block.
absl::Status CaughtException(const HttpDependencies& server, std::string_view place,
                             std::string_view request_id) noexcept;

// Returns the absl::Status of `body`, or that of its exception.
template <typename Body>
absl::Status Guarded(const HttpDependencies& server, std::string_view place,
                     std::string_view request_id, Body&& body) {
  try {
    return body();
  } catch (...) {
    return CaughtException(server, place, request_id);
  }
}

}  // namespace heddle::server
