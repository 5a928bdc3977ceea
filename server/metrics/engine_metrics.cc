#include <string>
#include <utility>

#include "server/metrics/engine_figures.h"
#include "server/metrics/metric_families.h"

namespace heddle::server {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

MetricFamily PageInfo(std::string name, const char* size_label, const char* count_label,
                      const EngineStats& stats) {
  MetricFamily family;
  family.name = std::move(name);
  family.help = "Always 1; the labels say how the KV cache is cut into pages.";
  family.type = MetricType::Gauge;
  ClientMetric metric;
  metric.label.push_back({size_label, std::to_string(stats.page_tokens)});
  metric.label.push_back({count_label, std::to_string(stats.pages_total)});
  metric.gauge.value = 1;
  family.metric.push_back(std::move(metric));
  return family;
}

// The figures of drafts, which vLLM counts alike.
void AppendVllmDrafts(const scheduler::DraftBudgetStats& drafts, MetricFamilies* families) {
  auto counter = [families](const char* name, const char* help, int64_t value) {
    families->push_back(SingleValue(name, help, MetricType::Counter, static_cast<double>(value)));
  };
  counter("vllm:spec_decode_num_drafts_total", "heddle_spec_decode_drafts_total.", drafts.drafts);
  counter("vllm:spec_decode_num_draft_tokens_total", "heddle_spec_decode_draft_tokens_total.",
          drafts.drafted_tokens);
  counter("vllm:spec_decode_num_accepted_tokens_total", "heddle_spec_decode_accepted_tokens_total.",
          drafts.accepted_tokens);
  MetricFamily family;
  family.name = "vllm:spec_decode_num_accepted_tokens_per_pos_total";
  family.help = "heddle_spec_decode_accepted_tokens_per_position_total.";
  family.type = MetricType::Counter;
  for (size_t place = 0; place < drafts.accepted_at.size(); ++place) {
    ClientMetric metric;
    metric.label.push_back({"position", std::to_string(place)});
    metric.counter.value = static_cast<double>(drafts.accepted_at[place]);
    family.metric.push_back(std::move(metric));
  }
  families->push_back(std::move(family));
}

}  // namespace

void AppendVllmNames(const EngineStats& stats, const NamedAdapters& adapters,
                     MetricFamilies* families) {
  auto gauge = [families](const char* name, const char* help, double value) {
    families->push_back(SingleValue(name, help, MetricType::Gauge, value));
  };
  gauge("vllm:num_requests_waiting", "heddle_waiting_requests.", stats.waiting_requests);
  gauge("vllm:num_requests_running", "heddle_running_sequences.", stats.running_sequences);
  gauge("vllm:kv_cache_usage_perc", "heddle_kv_usage_ratio.",
        stats.pages_total > 0 ? static_cast<double>(stats.pages_used) / stats.pages_total : 0);
  families->push_back(PageInfo("vllm:cache_config_info", "block_size", "num_gpu_blocks", stats));
  families->push_back(AdapterLabels("vllm:lora_requests_info", "max_lora", "running_lora_adapters",
                                    "waiting_lora_adapters", adapters));
  AppendVllmDrafts(stats.drafts, families);
}

MetricFamily SingleValue(std::string name, std::string help, MetricType type, double value) {
  MetricFamily family;
  family.name = std::move(name);
  family.help = std::move(help);
  family.type = type;
  ClientMetric metric;
  (type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
  family.metric.push_back(metric);
  return family;
}

void AppendEngineMetrics(const EngineStats& stats, MetricFamilies* families) {
  for (const EngineFigure& figure : EngineFigures()) {
    const bool counts = figure.kind == FigureKind::kCounter;
    if (families->empty() || families->back().name != figure.metric) {
      families->push_back({.name = std::string(figure.metric),
                           .help = std::string(figure.help),
                           .type = counts ? MetricType::Counter : MetricType::Gauge});
    }
    ClientMetric metric;
    if (!figure.label_name.empty()) {
      metric.label.push_back({std::string(figure.label_name), std::string(figure.label_value)});
    }
    (counts ? metric.counter.value : metric.gauge.value) = figure.value(stats);
    families->back().metric.push_back(std::move(metric));
  }
  families->push_back(PageInfo("heddle_kv_cache_info", "page_tokens", "num_pages", stats));
}

}  // namespace heddle::server
