#include "server/metrics/metric_families.h"

namespace heddle::server {

void AppendAdapterMetrics(const AdapterFigures& figures, MetricFamilies* families) {
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
}

}  // namespace heddle::server
