// Metric families built by hand from figures that someone else counts. Private to server/metrics/.
#pragma once

#include <string>
#include <vector>

#include "prometheus/metric_family.h"
#include "server/generation.h"

namespace heddle::server {

using MetricFamilies = std::vector<prometheus::MetricFamily>;

// A family with one unlabelled value.
prometheus::MetricFamily SingleValue(std::string name, std::string help,
                                     prometheus::MetricType type, double value);

void AppendEngineMetrics(const EngineStats& stats, MetricFamilies* families);

// Memory, CPU time and descriptors of this process, under the names that Prometheus' own client
// libraries use. What /proc does not tell is left out.
void AppendProcessMetrics(MetricFamilies* families);

}  // namespace heddle::server
