#include <cmath>
#include <cstdint>

#include "server/json_writer.h"
#include "server/metrics/engine_figures.h"
#include "server/metrics/metric_families.h"

namespace heddle::server {
namespace {

// Writes {"count", "sum_seconds", "buckets": [[upper bound in seconds or null, cumulative count],
// ...]}.
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
  json->Member("state", StateName(stats.state));
  std::string_view open;  // the object being written
  for (const EngineFigure& figure : EngineFigures()) {
    const size_t dot = figure.name.find('.');
    const std::string_view object =
        dot == std::string_view::npos ? std::string_view() : figure.name.substr(0, dot);
    if (object != open) {
      if (!open.empty()) json->EndObject();
      if (!object.empty()) json->Key(object).BeginObject();
      open = object;
    }
    json->Key(object.empty() ? figure.name : figure.name.substr(dot + 1));
    const double value = figure.value(stats);
    if (value == std::trunc(value)) {
      json->Int(static_cast<int64_t>(value));
    } else {
      json->Number(value);
    }
  }
  if (!open.empty()) json->EndObject();
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
