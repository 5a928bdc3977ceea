#include "server/http/access_log.h"

#include <chrono>
#include <cmath>
#include <memory>
#include <string_view>

#include "server/http/generation_routes.h"
#include "server/http/request_spans.h"
#include "server/http/router.h"

namespace heddle::server {
namespace {

// Milliseconds for log lines, to the microsecond; -1 if there is no such time.
double Milliseconds(double seconds) { return seconds < 0 ? -1 : std::round(seconds * 1e6) / 1e3; }

int64_t UnixNanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// Whether machines request the route every few seconds, which nobody wants to read in the log.
bool IsProbe(RouteId id) {
  return id == RouteId::kHealth || id == RouteId::kReady || id == RouteId::kMetrics;
}

}  // namespace

void LogRequest(const RequestRecord& record, const HttpDependencies& server,
                const std::function<uint64_t()>& random) {
  for (const std::shared_ptr<KeyAccount>& account : record.accounts) {
    account->Finish(record.prompt_tokens + record.generated_tokens, Clock::now());
  }
  std::string_view route = record.route.empty() ? std::string_view("other") : record.route;
  ServerMetrics* metrics = server.metrics;
  metrics->CountRequest(route, record.method, record.status);
  const Route* known = RouteNamed(route);
  if (known != nullptr && IsGenerationRoute(known->id) && !record.is_handed_over) {
    metrics->CountGeneration(route, OutcomeName(record.outcome), record.total_seconds);
    metrics->CountKey(record.key_name, OutcomeName(record.outcome), record.prompt_tokens,
                      record.generated_tokens);
  }
  if (SpanExporter* spans = server.spans; record.trace.sampled && !record.trace.span_id.empty()) {
    spans->Export(RequestSpans(record, server.model->id, UnixNanoseconds(), random));
  }
  const Logger& log = *server.log;
  const Logger::Fields fields = {{"method", record.method},
                                 {"path", record.path},
                                 {"status", static_cast<int64_t>(record.status)},
                                 {"outcome", OutcomeName(record.outcome)},
                                 {"key", record.key_name},
                                 {"prompt_tokens", record.prompt_tokens},
                                 {"generated_tokens", record.generated_tokens},
                                 {"ttft_ms", Milliseconds(record.first_token_seconds)},
                                 {"total_ms", Milliseconds(record.total_seconds)},
                                 {"trace_id", record.trace.trace_id},
                                 {"span_id", record.trace.span_id},
                                 {"request_id", record.request_id}};
  const bool is_probe = known != nullptr && IsProbe(known->id) && record.status == 200;
  is_probe ? log.Debug("request", fields) : log.Info("request", fields);
}

}  // namespace heddle::server
