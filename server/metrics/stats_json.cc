#include <cmath>

#include "server/json_writer.h"
#include "server/metrics/families.h"

namespace heddle::server {
namespace {

std::string_view StateName(EngineState state) {
  switch (state) {
    case EngineState::kServing:
      return "serving";
    case EngineState::kDraining:
      return "draining";
    case EngineState::kFailed:
      break;
  }
  return "failed";
}

// {"count", "sum_seconds", "buckets": [[upper bound in seconds or null, cumulative count], ...]}
void WriteHistogram(const prometheus::ClientMetric::Histogram& histogram, JsonWriter* json) {
  json->BeginObject().Member("count", histogram.sample_count);
  json->Key("sum_seconds").Number(histogram.sample_sum);
  json->Key("buckets").BeginArray();
  for (const auto& bucket : histogram.bucket) {
    json->BeginArray().Number(bucket.upper_bound).Int(bucket.cumulative_count).EndArray();
  }
  json->EndArray().EndObject();
}

void WriteEngine(const EngineStats& stats, JsonWriter* json) {
  json->Member("state", StateName(stats.state))
      .Member("running_sequences", stats.running_sequences)
      .Member("waiting_requests", stats.waiting_requests)
      .Member("queue_limit", stats.queue_limit)
      .Member("waiting_tokens", stats.waiting_tokens)
      .Member("orphaned_requests", stats.orphaned_requests)
      .Member("steps", stats.steps)
      .Member("step_tokens", stats.step_tokens)
      .Member("budget_tokens", stats.budget_tokens)
      .Member("prompt_tokens", stats.prompt_tokens)
      .Member("cached_tokens", stats.cached_tokens)
      .Member("generated_tokens", stats.generated_tokens)
      .Member("preemptions", stats.preemptions);
  json->Key("pages").BeginObject();
  json->Member("total", stats.pages_total)
      .Member("used", stats.pages_used)
      .Member("cached", stats.pages_cached)
      .Member("tokens_per_page", stats.page_tokens)
      .EndObject();
  json->Key("step_seconds").BeginObject();
  json->Key("plan").Number(stats.plan_seconds);
  json->Key("forward").Number(stats.forward_seconds);
  json->Key("sample").Number(stats.sample_seconds);
  json->Key("emit").Number(stats.emit_seconds);
  json->Key("between").Number(stats.between_seconds);
  json->Key("running").Number(stats.busy_since_seconds);
  json->EndObject();
}

}  // namespace

std::string FiguresJson(const EngineStats& engine, const ServerFigures& figures) {
  std::string out;
  JsonWriter json(&out);
  json.BeginObject().Member("model", figures.model).Member("version", figures.version);
  json.Key("uptime_seconds").Number(figures.uptime_seconds);
  WriteEngine(engine, &json);
  json.Member("open_connections", figures.connections.open)
      .Member("unsent_bytes", figures.connections.unsent_bytes)
      .Member("open_streams", figures.open_streams)
      .Member("resident_bytes", ResidentBytes());
  for (const auto& [name, metric] : figures.histograms) {
    json.Key(name);
    WriteHistogram(metric.histogram, &json);
  }
  json.EndObject();
  return out;
}

}  // namespace heddle::server
