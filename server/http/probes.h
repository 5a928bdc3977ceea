// The state behind /health, /ready, /metrics and /debug/stats: whether the server is alive and
// takes requests, and what it does. Private to server/http/.
// Thread-safety: any thread.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "server/http/server_context.h"

namespace heddle::server {

// Whether requests are served. UNAVAILABLE: the model is loading, the server is draining, or the
// engine has failed.
absl::Status CheckServing(const ServerContext& server);

// The state of the engine: UNAVAILABLE if it has failed, or if requests wait and no step ends.
absl::Status CheckEngine(const ServerContext& server);

// Whether more requests should be sent here: checks all of the above, and the threads that prepare
// them.
absl::Status CheckReady(const ServerContext& server);

std::string MetricsText(const ServerContext& server);  // in Prometheus' exposition format
std::string StatsJson(const ServerContext& server);

}  // namespace heddle::server
