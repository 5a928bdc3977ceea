#include "server/http/request_spans.h"

#include <array>
#include <string>
#include <utility>

#include "base/message.h"

namespace heddle::server {
namespace {

// gen_ai.operation.name; score, rerank and classify have no well-known name.
std::string_view Operation(std::string_view route) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 8> kOperations = {{
      {"/v1/chat/completions", "chat"},
      {"/v1/messages", "chat"},
      {"/v1/responses", "chat"},
      {"/v1/completions", "text_completion"},
      {"/v1/embeddings", "embeddings"},
      {"/v1/score", "score"},
      {"/v1/rerank", "rerank"},
      {"/v1/classify", "classify"},
  }};
  for (const auto& [pattern, operation] : kOperations) {
    if (pattern == route) return operation;
  }
  return "generate";
}

int64_t Nanoseconds(double seconds) { return static_cast<int64_t>(seconds * 1e9); }

void AddUsage(const RequestRecord& record, std::vector<Attribute>* attributes) {
  attributes->push_back({"gen_ai.usage.input_tokens", record.prompt_tokens});
  attributes->push_back({"gen_ai.usage.output_tokens", record.generated_tokens});
  attributes->push_back({"gen_ai.usage.cache_read.input_tokens", record.cached_tokens});
}

void AddSampling(const RequestRecord& record, std::vector<Attribute>* attributes) {
  if (!record.asked.has_value()) return;
  attributes->push_back({"gen_ai.request.max_tokens", int64_t{record.asked->max_tokens}});
  attributes->push_back({"gen_ai.request.temperature", double{record.asked->temperature}});
  attributes->push_back({"gen_ai.request.top_p", double{record.asked->top_p}});
  attributes->push_back({"gen_ai.request.choice.count", int64_t{record.asked->choices}});
}

std::vector<Attribute> Describe(const RequestRecord& record, std::string_view model) {
  std::vector<Attribute> attributes = {
      {"gen_ai.operation.name", std::string(Operation(record.route))},
      {"gen_ai.provider.name", "heddle"},
      {"gen_ai.request.model", std::string(model)},
      {"gen_ai.response.model", std::string(model)},
      {"http.request.method", record.method},
      {"http.route", record.route},
      {"http.response.status_code", int64_t{record.status}},
      {"heddle.request_id", record.request_id},
      {"heddle.outcome", std::string(OutcomeName(record.outcome))},
  };
  AddUsage(record, &attributes);
  AddSampling(record, &attributes);
  if (!record.finish_reasons.empty()) {
    attributes.push_back({"gen_ai.response.finish_reasons", record.finish_reasons});
  }
  if (record.first_token_seconds >= 0) {
    attributes.push_back({"heddle.time_to_first_token", record.first_token_seconds});
  }
  if (!record.key_name.empty()) attributes.push_back({"heddle.key", record.key_name});
  if (record.status >= 400 || record.failed_midway) {
    attributes.push_back(
        {"error.type", record.failed_midway ? "stream" : std::to_string(record.status)});
  }
  return attributes;
}

}  // namespace

std::vector<Span> RequestSpans(const RequestRecord& record, std::string_view model,
                               int64_t end_unix_ns, const std::function<uint64_t()>& random) {
  std::vector<Span> spans;
  const int64_t begin = end_unix_ns - Nanoseconds(record.total_seconds);
  Span whole;
  whole.trace_id = record.trace.trace_id;
  whole.span_id = record.trace.span_id;
  whole.parent_span_id = record.trace.parent_span_id;
  whole.name = base::StrCat(Operation(record.route), " ", model);
  whole.kind = Span::Kind::kServer;
  whole.begin_unix_ns = begin;
  whole.end_unix_ns = end_unix_ns;
  whole.attributes = Describe(record, model);
  // By the conventions for HTTP, a client's mistake is not an error of the server's span.
  if (record.outcome == Outcome::kServerError) whole.error = "the request failed";
  spans.push_back(std::move(whole));

  // Both times are in seconds since the request was complete; negative: it did not get that far.
  const auto add_part = [&](std::string_view name, double from, double to) {
    if (from < 0 || to < from) return;
    Span part;
    part.trace_id = record.trace.trace_id;
    part.span_id = SpanIdFrom(random());
    part.parent_span_id = record.trace.span_id;
    part.name = std::string(name);
    part.begin_unix_ns = begin + Nanoseconds(from);
    part.end_unix_ns = begin + Nanoseconds(to);
    spans.push_back(std::move(part));
  };
  const double first = record.first_token_seconds;
  add_part("prepare", 0, record.prepared_seconds);
  add_part("queued", record.prepared_seconds, record.queued_seconds);
  add_part("prefill", record.queued_seconds, first >= 0 ? first : record.last_event_seconds);
  add_part("decode", first, record.last_event_seconds);
  return spans;
}

}  // namespace heddle::server
