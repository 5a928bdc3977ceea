// Metric families built by hand from figures that someone else counts. Private to server/metrics/.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "prometheus/metric_family.h"
#include "server/generation.h"
#include "server/metrics/server_metrics.h"

namespace heddle::server {

using MetricFamilies = std::vector<prometheus::MetricFamily>;

// A family with one unlabelled value.
prometheus::MetricFamily SingleValue(std::string name, std::string help,
                                     prometheus::MetricType type, double value);

// What the endpoint picker of Kubernetes' Gateway API Inference Extension reads (requests waiting
// and running, use of the KV cache, its pages), under the names that vLLM gives them.
void AppendVllmNames(const EngineStats& stats, MetricFamilies* families);

void AppendEngineMetrics(const EngineStats& stats, MetricFamilies* families);

// Memory, CPU time and descriptors of this process, under the names that Prometheus' own client
// libraries use. What /proc does not tell is left out.
void AppendProcessMetrics(MetricFamilies* families);

// Of this process; 0 where /proc does not tell.
int64_t ResidentBytes();

// What /debug/stats shows beside the engine's figures.
struct ServerFigures {
  std::string_view model;
  std::string_view version;
  double uptime_seconds = 0;
  ConnectionFigures connections;
  int64_t open_streams = 0;
  std::vector<std::pair<std::string_view, prometheus::ClientMetric>> histograms;  // in seconds
};

std::string FiguresJson(const EngineStats& engine, const ServerFigures& figures);

}  // namespace heddle::server
