#include <string>
#include <utility>

#include "server/metrics/metric_families.h"

namespace heddle::server {

void AppendBranchMetrics(const BranchFigures& figures, MetricFamilies* families) {
  using prometheus::MetricType;
  const auto add = [families](const char* name, const char* help, MetricType type, int64_t value) {
    families->push_back(SingleValue(name, help, type, static_cast<double>(value)));
  };
  add("heddle_branch_trees", "Trees of branches that live.", MetricType::Gauge, figures.trees);
  add("heddle_branches", "Branches that live (--max-branches).", MetricType::Gauge,
      figures.branches);
  add("heddle_branches_running", "Branches that are being continued.", MetricType::Gauge,
      figures.running);
  add("heddle_branch_tokens", "Tokens that branches remember or have reserved.", MetricType::Gauge,
      figures.tokens);
  add("heddle_branches_forked_total", "Branches that were forked from others.", MetricType::Counter,
      figures.forked);
  add("heddle_branches_workers_total",
      "Branches that were forked as workers, which see each other's tokens.", MetricType::Counter,
      figures.workers);
  add("heddle_branches_joined_total", "Joins of branches.", MetricType::Counter, figures.joined);
  prometheus::MetricFamily ended;
  ended.name = "heddle_branches_ended_total";
  ended.help = "Branches that ended: deleted, or because their time was over.";
  ended.type = MetricType::Counter;
  const std::pair<const char*, int64_t> reasons[] = {{"deleted", figures.dropped},
                                                     {"expired", figures.expired}};
  for (const auto& [reason, count] : reasons) {
    prometheus::ClientMetric metric;
    metric.label.push_back({"reason", reason});
    metric.counter.value = static_cast<double>(count);
    ended.metric.push_back(std::move(metric));
  }
  families->push_back(std::move(ended));
}

}  // namespace heddle::server
