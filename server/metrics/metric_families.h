// Metric families built by hand from figures that are counted elsewhere. Private to
// server/metrics/.
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

// LoRA adapters by name, as routers read them.
struct NamedAdapters {
  int32_t max = 0;                   // that may run at once
  std::vector<std::string> running;  // in the pool: a request for one is served at once
  std::vector<std::string> waiting;  // requests wait for them
  double changed_at = 0;             // Unix time, seconds, of the last change
};

// A family whose labels name adapters, and whose value is the time of their last change.
prometheus::MetricFamily AdapterLabels(std::string name, const char* max_label,
                                       const char* running_label, const char* waiting_label,
                                       const NamedAdapters& adapters);

// Appends the figures that the endpoint picker of Kubernetes' Gateway API Inference Extension reads
// (requests waiting and running, use of the KV cache, its pages, adapters), under vLLM's names; and
// those of speculative decoding.
void AppendVllmNames(const EngineStats& stats, const NamedAdapters& adapters,
                     MetricFamilies* families);

void AppendEngineMetrics(const EngineStats& stats, MetricFamilies* families);

void AppendAdapterMetrics(const AdapterFigures& figures, const NamedAdapters& named,
                          MetricFamilies* families);

void AppendBranchMetrics(const BranchFigures& figures, MetricFamilies* families);
void AppendBatchMetrics(const BatchFigures& figures, MetricFamilies* families);

// Appends this process's memory, CPU time and descriptors, under the names of Prometheus' own
// client libraries. Figures that /proc does not give are left out.
void AppendProcessMetrics(MetricFamilies* families);

// This process's resident bytes; 0 if /proc does not tell.
int64_t ResidentBytes();

// The figures of /debug/stats beside the engine's.
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
