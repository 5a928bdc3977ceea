// Which trace a request belongs to: W3C Trace Context, level 1
// (https://www.w3.org/TR/trace-context/). Plain data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace heddle::server {

struct TraceContext {
  std::string trace_id;        // 32 hexadecimal digits in lower case; empty: none
  std::string span_id;         // 16: of the request's own span; empty: it has none
  std::string parent_span_id;  // of the caller's span; empty: the trace begins here
  bool sampled = false;        // spans are wanted
};

// The context in a `traceparent` header, without a span of its own; nothing where the header is
// not one. Versions to come may have more behind the flags; 00 may not.
std::optional<TraceContext> ParseTraceparent(std::string_view header);

// Ids of random bits; a zero, which means "none", becomes another.
std::string TraceIdFrom(uint64_t high, uint64_t low);
std::string SpanIdFrom(uint64_t bits);

// Whether a trace that begins here is among `ratio` of all: decided by the random bits of its id,
// so that all who see the trace and have the same ratio decide alike.
bool IsSampled(uint64_t trace_id_low, double ratio);

}  // namespace heddle::server
