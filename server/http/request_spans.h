// The spans of one finished generation request: the request itself, and inside it the times of
// preparation, queueing, the prompt (prefill) and the answer (decode).
//
// Names and attributes: OpenTelemetry's semantic conventions for generative AI and for HTTP; ours
// begin with "heddle.". docs/tracing.md lists them.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "server/http/exchange.h"
#include "server/tracing/span.h"

namespace heddle::server {

// `end_unix_ns`: the end of the request. `random`: random bits for the ids of the parts.
std::vector<Span> RequestSpans(const RequestRecord& record, std::string_view model,
                               int64_t end_unix_ns, const std::function<uint64_t()>& random);

}  // namespace heddle::server
