// The trace that a request belongs to: W3C Trace Context, level 1
// (https://www.w3.org/TR/trace-context/). Plain data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace heddle::server {

struct TraceContext {
  std::string trace_id;        // 32 hexadecimal digits in lower case; empty: none
  std::string span_id;         // 16, for the request's own span; empty: none
  std::string parent_span_id;  // the caller's span; empty: the trace begins here
  bool sampled = false;        // spans are wanted
};

// The context in a `traceparent` header, without a span of its own; empty if the header is not one.
// Future versions may have more behind the flags; 00 may not.
std::optional<TraceContext> ParseTraceparent(std::string_view header);

// Ids made of random bits; zero, which means "none", is replaced.
std::string TraceIdFrom(uint64_t high, uint64_t low);
std::string SpanIdFrom(uint64_t bits);

// Whether a trace that begins here is among the sampled share `ratio`: decided by the random bits
// of its id, so that all servers with the same ratio agree on it.
bool IsSampled(uint64_t trace_id_low, double ratio);

}  // namespace heddle::server
