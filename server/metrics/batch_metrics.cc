#include <string>
#include <utility>

#include "server/metrics/metric_families.h"

namespace heddle::server {

void AppendBatchMetrics(const BatchFigures& figures, MetricFamilies* families) {
  using prometheus::MetricType;
  prometheus::MetricFamily batches;
  batches.name = "heddle_batches";
  batches.help = "Batches that are remembered, by status.";
  batches.type = MetricType::Gauge;
  for (size_t i = 0; i < kNumBatchStatuses; ++i) {
    prometheus::ClientMetric metric;
    metric.label.push_back({"status", std::string(BatchStatusName(static_cast<BatchStatus>(i)))});
    metric.gauge.value = static_cast<double>(figures.batches[i]);
    batches.metric.push_back(std::move(metric));
  }
  families->push_back(std::move(batches));
  const auto add = [families](const char* name, const char* help, int64_t value) {
    families->push_back(SingleValue(name, help, MetricType::Gauge, static_cast<double>(value)));
  };
  add("heddle_batch_lines_left", "Lines without a result, of batches that have not ended.",
      figures.lines_left);
  add("heddle_batch_lines_running", "Lines of batches in progress (--batch-concurrency).",
      figures.lines_running);
  add("heddle_batch_lines_held", "Lines in progress that wait for live requests.",
      figures.lines_held);
  add("heddle_batch_file_bytes", "Bytes of files of /v1/files and of results.", figures.file_bytes);
  add("heddle_batch_file_bytes_limit", "The most that these may be (--batch-storage).",
      figures.file_bytes_limit);
}

}  // namespace heddle::server
