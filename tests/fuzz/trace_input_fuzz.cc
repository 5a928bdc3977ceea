// Any text as a client's traceparent, and as an operator's --otlp-endpoint.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "server/tracing/span_exporter.h"
#include "server/tracing/trace_context.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  if (const auto context = heddle::server::ParseTraceparent(input)) {
    HEDDLE_CHECK(context->trace_id.size() == 32 && context->parent_span_id.size() == 16,
                 "ids have their length");
  }
  if (const auto endpoint = heddle::server::ParseOtlpEndpoint(input); endpoint.ok()) {
    HEDDLE_CHECK(!endpoint->host.empty() && endpoint->target.ends_with("/v1/traces"),
                 "an endpoint is whole");
    HEDDLE_CHECK(endpoint->target.find_first_of("\r\n ") == std::string::npos,
                 "a target stays on its line");
  }
  return 0;
}
