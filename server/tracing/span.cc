#include "server/tracing/span.h"

#include "server/json_writer.h"

namespace heddle::server {
namespace {

constexpr int kStatusError = 2;

void WriteString(std::string_view text, JsonWriter* json) {
  json->BeginObject().Member("stringValue", text).EndObject();
}

struct ValueWriter {
  JsonWriter* json;

  void operator()(const std::string& text) const { WriteString(text, json); }
  void operator()(int64_t number) const {
    json->BeginObject().Member("intValue", std::to_string(number)).EndObject();
  }
  void operator()(double number) const {
    json->BeginObject().Key("doubleValue").Number(number).EndObject();
  }
  void operator()(bool truth) const {
    json->BeginObject().Key("boolValue").Bool(truth).EndObject();
  }
  void operator()(const std::vector<std::string>& texts) const {
    json->BeginObject().Key("arrayValue").BeginObject().Key("values").BeginArray();
    for (const std::string& text : texts) WriteString(text, json);
    json->EndArray().EndObject().EndObject();
  }
};

void WriteAttributes(std::span<const Attribute> attributes, JsonWriter* json) {
  json->Key("attributes").BeginArray();
  for (const Attribute& attribute : attributes) {
    json->BeginObject().Member("key", attribute.key).Key("value");
    std::visit(ValueWriter{json}, attribute.value);
    json->EndObject();
  }
  json->EndArray();
}

void WriteSpan(const Span& span, JsonWriter* json) {
  json->BeginObject().Member("traceId", span.trace_id).Member("spanId", span.span_id);
  if (!span.parent_span_id.empty()) json->Member("parentSpanId", span.parent_span_id);
  json->Member("name", span.name).Member("kind", static_cast<int>(span.kind));
  json->Member("startTimeUnixNano", std::to_string(span.begin_unix_ns));
  json->Member("endTimeUnixNano", std::to_string(span.end_unix_ns));
  WriteAttributes(span.attributes, json);
  json->Key("status").BeginObject();
  if (!span.error.empty()) json->Member("message", span.error).Member("code", kStatusError);
  json->EndObject().EndObject();
}

}  // namespace

std::string OtlpJson(std::span<const Span> spans, std::span<const Attribute> resource) {
  std::string out;
  JsonWriter json(&out);
  json.BeginObject().Key("resourceSpans").BeginArray().BeginObject();
  json.Key("resource").BeginObject();
  WriteAttributes(resource, &json);
  json.EndObject();
  json.Key("scopeSpans").BeginArray().BeginObject();
  json.Key("scope").BeginObject().Member("name", "heddle").EndObject();
  json.Key("spans").BeginArray();
  for (const Span& span : spans) WriteSpan(span, &json);
  json.EndArray().EndObject().EndArray();
  json.EndObject().EndArray().EndObject();
  return out;
}

}  // namespace heddle::server
