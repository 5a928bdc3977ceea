#include <string>
#include <utility>

#include "absl/strings/str_join.h"
#include "server/metrics/families.h"

namespace heddle::server {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

ClientMetric Labelled(std::string name, std::string label_value, MetricType type, double value) {
  ClientMetric metric;
  metric.label.push_back({std::move(name), std::move(label_value)});
  (type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
  return metric;
}

MetricFamily StepTime(const EngineStats& stats) {
  MetricFamily family;
  family.name = "heddle_step_seconds_total";
  family.help = "Time spent in engine steps, by part of the step.";
  family.type = MetricType::Counter;
  const std::pair<const char*, double> parts[] = {{"plan", stats.plan_seconds},
                                                  {"forward", stats.forward_seconds},
                                                  {"sample", stats.sample_seconds},
                                                  {"swap", stats.swap_seconds},
                                                  {"emit", stats.emit_seconds}};
  for (const auto& [part, seconds] : parts) {
    family.metric.push_back(Labelled("part", part, MetricType::Counter, seconds));
  }
  return family;
}

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

MetricFamily AdapterInfo(std::string name, const char* max_label, const char* running_label,
                         const char* waiting_label, const AdapterStats& adapters) {
  MetricFamily family;
  family.name = std::move(name);
  family.help = "Unix time at which the labels changed, which name LoRA adapters.";
  family.type = MetricType::Gauge;
  ClientMetric metric;
  metric.label.push_back({max_label, std::to_string(adapters.max)});
  metric.label.push_back({running_label, absl::StrJoin(adapters.running, ",")});
  metric.label.push_back({waiting_label, absl::StrJoin(adapters.waiting, ",")});
  metric.gauge.value = adapters.changed_at;
  family.metric.push_back(std::move(metric));
  return family;
}

double UsedShare(const EngineStats& stats) {
  return stats.pages_total > 0 ? static_cast<double>(stats.pages_used) / stats.pages_total : 0;
}

}  // namespace

void AppendVllmNames(const EngineStats& stats, MetricFamilies* families) {
  auto gauge = [families](const char* name, const char* help, double value) {
    families->push_back(SingleValue(name, help, MetricType::Gauge, value));
  };
  gauge("vllm:num_requests_waiting", "heddle_waiting_requests.", stats.waiting_requests);
  gauge("vllm:num_requests_running", "heddle_running_sequences.", stats.running_sequences);
  gauge("vllm:kv_cache_usage_perc", "heddle_kv_usage_ratio.", UsedShare(stats));
  families->push_back(PageInfo("vllm:cache_config_info", "block_size", "num_gpu_blocks", stats));
  families->push_back(AdapterInfo("vllm:lora_requests_info", "max_lora", "running_lora_adapters",
                                  "waiting_lora_adapters", stats.adapters));
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
  auto gauge = [families](const char* name, const char* help, double value) {
    families->push_back(SingleValue(name, help, MetricType::Gauge, value));
  };
  auto counter = [families](const char* name, const char* help, int64_t value) {
    families->push_back(SingleValue(name, help, MetricType::Counter, static_cast<double>(value)));
  };
  gauge("heddle_running_sequences", "Sequences in the batch.", stats.running_sequences);
  gauge("heddle_waiting_requests", "Requests that wait for their first step.",
        stats.waiting_requests);
  gauge("heddle_queue_limit", "Requests that may wait before others are refused.",
        stats.queue_limit);
  gauge("heddle_waiting_tokens", "Tokens in the prompts of waiting requests.",
        static_cast<double>(stats.waiting_tokens));
  gauge("heddle_kv_pages", "Pages of the KV cache.", stats.pages_total);
  gauge("heddle_kv_pages_used", "Pages of the KV cache in use.", stats.pages_used);
  gauge("heddle_kv_pages_cached",
        "Pages that nobody uses, with content that a later prompt may take over.",
        stats.pages_cached);
  gauge("heddle_kv_host_pages", "Pages of the tier in the host's memory or on its disk.",
        stats.host_pages_total);
  gauge("heddle_kv_host_pages_used", "Pages of that tier in use.", stats.host_pages_used);
  gauge("heddle_kv_page_tokens", "Token positions per page.", stats.page_tokens);
  gauge("heddle_kv_usage_ratio", "Share of the KV cache in use, from 0 to 1.", UsedShare(stats));
  families->push_back(PageInfo("heddle_kv_cache_info", "page_tokens", "num_pages", stats));
  gauge("heddle_adapters_loaded", "LoRA adapters in memory.", stats.adapters.loaded);
  families->push_back(AdapterInfo("heddle_adapter_info", "max_adapters", "running_adapters",
                                  "waiting_adapters", stats.adapters));
  gauge("heddle_orphaned_requests", "Requests that run for nobody; must be 0.",
        stats.orphaned_requests);
  gauge("heddle_step_running_seconds", "Since the last step ended, while there is work; 0: idle.",
        stats.busy_since_seconds);
  counter("heddle_steps_total", "Engine steps done.", stats.steps);
  counter("heddle_steps_ahead_total",
          "Of these, steps that were planned and submitted while the one before ran.",
          stats.steps_ahead);
  counter("heddle_step_tokens_total", "Token positions that the steps computed.",
          stats.step_tokens);
  counter("heddle_step_budget_tokens_total",
          "Token positions that the steps could have computed within their budgets.",
          stats.budget_tokens);
  counter("heddle_computed_prompt_tokens_total",
          "Prompt positions computed, those computed again after a preemption and forced tokens "
          "included.",
          stats.prompt_tokens);
  counter("heddle_prefix_cache_tokens_total",
          "Prompt positions taken from the prefix cache in place of computing them.",
          stats.cached_tokens);
  counter("heddle_sampled_tokens_total", "Tokens of answers, drawn or forced.",
          stats.generated_tokens);
  counter("heddle_forced_tokens_total",
          "Of these, tokens that a grammar left no choice about and nobody drew.",
          stats.forced_tokens);
  counter("heddle_preemptions_total", "Sequences that gave up their pages to others.",
          stats.preemptions);
  counter("heddle_pages_swapped_out_total", "Pages that went to the host's tier.",
          stats.pages_swapped_out);
  counter("heddle_pages_swapped_in_total", "Pages that came back from the host's tier.",
          stats.pages_swapped_in);
  counter("heddle_overdue_requests_total",
          "Requests that waited for the starvation limit and then went ahead of others.",
          stats.overdue_requests);
  families->push_back(StepTime(stats));
  families->push_back(
      SingleValue("heddle_between_steps_seconds_total",
                  "From the end of a step to the start of the next, while there was work: the time "
                  "in which the engine computes nothing.",
                  MetricType::Counter, stats.between_seconds));
}

}  // namespace heddle::server
