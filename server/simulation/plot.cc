// ReportSvg: the charts of a simulation.
#include <algorithm>

#include "server/simulation/chart.h"
#include "server/simulation/report.h"

namespace heddle::server {
namespace {

using scheduler::LoadState;
using scheduler::Timeline;

// These colours are safe for colour-blind readers (Okabe and Ito, 2008).
constexpr const char* kBlue = "#0072b2";
constexpr const char* kOrange = "#e69f00";
constexpr const char* kGreen = "#009e73";
constexpr const char* kRed = "#d55e00";

// One point per interval, in its middle.
template <typename Value>
Series Over(const Timeline& timeline, const char* label, const char* color, Value value) {
  Series series{.label = label, .color = color};
  for (size_t i = 0; i < timeline.intervals().size(); ++i) {
    const double length_us = timeline.LengthUs(i);
    if (length_us <= 0) continue;
    const double middle_us = timeline.interval_us() * static_cast<double>(i) + length_us / 2;
    series.points.emplace_back(middle_us / 1e6, value(i, length_us / 1e6));
  }
  return series;
}

// Percentiles from 1 to 100 of a function of the share.
template <typename PercentileMs>
Series Quantiles(const char* label, const char* color, PercentileMs percentile_ms) {
  Series series{.label = label, .color = color};
  for (int percent = 1; percent <= 100; ++percent) {
    series.points.emplace_back(percent, percentile_ms(percent / 100.0));
  }
  return series;
}

Chart Latencies(const scheduler::SimulationResult& result) {
  std::vector<double> ttft_us;
  for (const scheduler::SimulatedResult& record : result.requests) {
    if (record.first_token_us > 0) ttft_us.push_back(record.first_token_us - record.arrival_us);
  }
  Chart chart{
      .title = "Latency", .x_label = "percentile", .y_label = "milliseconds", .log_y = true};
  chart.series.push_back(Quantiles("to the first token", kBlue, [&](double share) {
    return scheduler::Percentile(&ttft_us, share) / 1e3;
  }));
  chart.series.push_back(Quantiles("between two tokens", kOrange, [&](double share) {
    return result.inter_token.PercentileUs(share) / 1e3;
  }));
  return chart;
}

}  // namespace

std::string ReportSvg(const scheduler::SimulationResult& result, const SimulationReport& report,
                      const std::string& title) {
  const Timeline& timeline = report.timeline;
  const double pages = report.num_pages;
  Chart speed{.title = "Tokens per second", .x_label = "seconds", .y_label = "tokens/s"};
  speed.series.push_back(Over(timeline, "output", kBlue, [&](size_t i, double seconds) {
    return static_cast<double>(timeline.intervals()[i].tokens) / seconds;
  }));
  speed.series.push_back(Over(timeline, "prompt, computed", kOrange, [&](size_t i, double seconds) {
    return static_cast<double>(timeline.intervals()[i].prompt_rows) / seconds;
  }));
  Chart load{.title = "Load", .x_label = "seconds", .y_label = "count"};
  load.series.push_back(Over(timeline, "running sequences", kBlue,
                             [&](size_t i, double) { return timeline.Mean(i).running; }));
  load.series.push_back(Over(timeline, "waiting requests", kRed,
                             [&](size_t i, double) { return timeline.Mean(i).waiting; }));
  Chart memory{.title = "KV pages", .x_label = "seconds", .y_label = "% of the pool"};
  memory.series.push_back(Over(timeline, "used", kBlue, [&](size_t i, double) {
    return 100 * timeline.Mean(i).pages_used / pages;
  }));
  memory.series.push_back(Over(timeline, "used, at most", kRed, [&](size_t i, double) {
    return 100 * timeline.intervals()[i].most_pages / pages;
  }));
  memory.series.push_back(Over(timeline, "kept as cache", kGreen, [&](size_t i, double) {
    return 100 * timeline.Mean(i).pages_cached / pages;
  }));
  return ChartsToSvg(title, {speed, load, memory, Latencies(result)});
}

}  // namespace heddle::server
