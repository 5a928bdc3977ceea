// A span in OpenTelemetry's sense, and the JSON in which OTLP over HTTP carries spans.
// Source: opentelemetry-proto, trace/v1/trace.proto; OTLP 1.x, "JSON Protobuf Encoding" (ids in
// hexadecimal, 64-bit integers as strings, enumerations as numbers).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace heddle::server {

struct Attribute {
  std::string_view key;  // a literal
  std::variant<std::string, int64_t, double, bool, std::vector<std::string>> value;
};

struct Span {
  enum class Kind : uint8_t { kInternal = 1, kServer = 2 };  // the protocol's numbers

  std::string trace_id;        // 32 hexadecimal digits
  std::string span_id;         // 16
  std::string parent_span_id;  // 16, or empty
  std::string name;
  Kind kind = Kind::kInternal;
  int64_t begin_unix_ns = 0;
  int64_t end_unix_ns = 0;
  std::vector<Attribute> attributes;
  std::string error;  // error on our side; empty: none
};

// An ExportTraceServiceRequest. `resource` describes the sender: service.name and the like.
std::string OtlpJson(std::span<const Span> spans, std::span<const Attribute> resource);

}  // namespace heddle::server
