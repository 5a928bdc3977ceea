#include <string>
#include <utility>

#include "absl/strings/str_join.h"
#include "server/metrics/metric_families.h"

namespace heddle::server {

prometheus::MetricFamily AdapterLabels(std::string name, const char* max_label,
                                       const char* running_label, const char* waiting_label,
                                       const NamedAdapters& adapters) {
  prometheus::MetricFamily family;
  family.name = std::move(name);
  family.help = "Unix time at which the labels changed, which name LoRA adapters.";
  family.type = prometheus::MetricType::Gauge;
  prometheus::ClientMetric metric;
  metric.label.push_back({max_label, std::to_string(adapters.max)});
  metric.label.push_back({running_label, absl::StrJoin(adapters.running, ",")});
  metric.label.push_back({waiting_label, absl::StrJoin(adapters.waiting, ",")});
  metric.gauge.value = adapters.changed_at;
  family.metric.push_back(std::move(metric));
  return family;
}

void AppendAdapterMetrics(const AdapterFigures& figures, const NamedAdapters& named,
                          MetricFamilies* families) {
  using prometheus::MetricType;
  const auto add = [families](const char* name, const char* help, MetricType type, int64_t value) {
    families->push_back(SingleValue(name, help, type, static_cast<double>(value)));
  };
  add("heddle_adapters_known", "Names of LoRA adapters that are known.", MetricType::Gauge,
      figures.known);
  add("heddle_adapters_loading", "LoRA adapters that are being loaded, or wait for it.",
      MetricType::Gauge, figures.loading);
  add("heddle_adapters_failed", "LoRA adapters that cannot be used as they are on the disk.",
      MetricType::Gauge, figures.failed);
  add("heddle_adapter_host_bytes", "Bytes of LoRA adapters in the host's memory.",
      MetricType::Gauge, figures.host_bytes);
  add("heddle_adapter_host_bytes_limit", "The most that these may be (--lora-host-memory).",
      MetricType::Gauge, figures.host_bytes_limit);
  add("heddle_adapter_waiting_requests", "Requests that wait for their adapter to be loaded.",
      MetricType::Gauge, figures.waiting);
  add("heddle_adapter_evictions_total", "LoRA adapters that left the host's memory for others.",
      MetricType::Counter, figures.evictions);
  add("heddle_adapter_failed_loads_total", "Loads of LoRA adapters that failed.",
      MetricType::Counter, figures.failed_loads);
  families->push_back(AdapterLabels("heddle_adapter_info", "max_adapters", "running_adapters",
                                    "waiting_adapters", named));
}

}  // namespace heddle::server
