#include "server/simulation/report.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "base/message.h"
#include "nlohmann/json.hpp"

namespace heddle::server {
namespace {

using scheduler::Interval;
using scheduler::LatencyHistogram;
using scheduler::LoadState;
using scheduler::SimulatedOutcome;
using scheduler::SimulatedResult;
using scheduler::SimulationResult;
using scheduler::Timeline;

constexpr double kMsPerUs = 1e-3;
constexpr double kUsPerS = 1e6;
constexpr double kLeastWindowS = 1.0;
constexpr size_t kTableRows = 12;

Spread SpreadOf(std::vector<double> us) {
  if (us.empty()) return {};
  Spread spread;
  for (double value : us) spread.mean += value * kMsPerUs / static_cast<double>(us.size());
  spread.p50 = scheduler::Percentile(&us, 0.5) * kMsPerUs;
  spread.p90 = scheduler::Percentile(&us, 0.9) * kMsPerUs;
  spread.p99 = scheduler::Percentile(&us, 0.99) * kMsPerUs;
  spread.max = us.back() * kMsPerUs;
  return spread;
}

Spread SpreadOf(const LatencyHistogram& us) {
  return {.mean = us.mean_us() * kMsPerUs,
          .p50 = us.PercentileUs(0.5) * kMsPerUs,
          .p90 = us.PercentileUs(0.9) * kMsPerUs,
          .p99 = us.PercentileUs(0.99) * kMsPerUs,
          .max = us.max_us() * kMsPerUs};
}

void SummarizeRequests(const SimulationResult& result, SimulationReport* report) {
  std::vector<double> ttft, queued, whole;
  for (const SimulatedResult& record : result.requests) {
    ++report->requests;
    if (record.outcome == SimulatedOutcome::kNeverFits) ++report->never_fit;
    if (record.outcome == SimulatedOutcome::kQueueFull) ++report->queue_full;
    if (record.outcome == SimulatedOutcome::kWaitedTooLong) ++report->waited_too_long;
    if (record.outcome != SimulatedOutcome::kDone) continue;
    ++report->done;
    report->output_tokens += record.output_tokens;
    report->prompt_tokens += record.prompt_tokens;
    report->cached_tokens += record.cached_tokens;
    queued.push_back(record.started_us - record.arrival_us);
    whole.push_back(record.done_us - record.arrival_us);
    if (record.first_token_us > 0) ttft.push_back(record.first_token_us - record.arrival_us);
  }
  report->ttft = SpreadOf(std::move(ttft));
  report->queued = SpreadOf(std::move(queued));
  report->whole = SpreadOf(std::move(whole));
  report->inter_token = SpreadOf(result.inter_token);
}

// Joins intervals until each is at least kLeastWindowS long; an unfinished one is left out.
void SummarizeWindows(const Timeline& timeline, SimulationReport* report) {
  const double interval_s = timeline.interval_us() / kUsPerS;
  const auto joined = static_cast<size_t>(std::max(1.0, std::ceil(kLeastWindowS / interval_s)));
  report->window_s = interval_s * static_cast<double>(joined);
  std::vector<double> rates;
  for (size_t i = 0; i + joined <= timeline.intervals().size(); i += joined) {
    if (timeline.LengthUs(i + joined - 1) < timeline.interval_us()) break;
    int64_t tokens = 0;
    for (size_t j = i; j < i + joined; ++j) tokens += timeline.intervals()[j].tokens;
    rates.push_back(static_cast<double>(tokens) / report->window_s);
  }
  report->window_p50 = scheduler::Percentile(&rates, 0.5);
  report->window_p10 = scheduler::Percentile(&rates, 0.1);
  report->window_p1 = scheduler::Percentile(&rates, 0.01);
}

void SummarizePages(const SimulationResult& result, SimulationReport* report) {
  const Timeline& timeline = result.timeline;
  double pages_us = 0, most = 0;
  for (size_t i = 0; i < timeline.intervals().size(); ++i) {
    pages_us += timeline.Mean(i).pages_used * timeline.LengthUs(i);
    most = std::max(most, timeline.intervals()[i].most_pages);
  }
  report->mean_pages_share = pages_us / std::max(1.0, timeline.end_us()) / report->num_pages;
  report->most_pages_share = most / report->num_pages;
}

std::string SpreadRow(const char* name, const Spread& spread) {
  auto ms = [](double value) {
    return value < 100 ? absl::StrFormat("%10.2f", value) : absl::StrFormat("%10.0f", value);
  };
  return base::StrCat(absl::StrFormat("%-22s", name), ms(spread.mean), ms(spread.p50),
                      ms(spread.p90), ms(spread.p99), ms(spread.max), "\n");
}

std::string CountsText(const SimulationReport& report) {
  std::string text = absl::StrFormat("%d requests in %.1f s simulated: %d done", report.requests,
                                     report.simulated_s, report.done);
  if (report.queue_full > 0) text += absl::StrFormat(", %d met a full queue", report.queue_full);
  if (report.waited_too_long > 0) {
    text += absl::StrFormat(", %d waited too long for their start", report.waited_too_long);
  }
  if (report.never_fit > 0) {
    text += absl::StrFormat(", %d longer than the context or the pool", report.never_fit);
  }
  return text + "\n";
}

// Joins intervals into at most kTableRows rows.
std::string TimelineText(const SimulationReport& report) {
  const Timeline& timeline = report.timeline;
  const size_t count = timeline.intervals().size();
  const size_t joined = (count + kTableRows - 1) / kTableRows;
  std::string text = absl::StrFormat(
      "\npages of %d tokens, %d in all\n%10s  %-22s %6s %6s %8s %8s %10s\n", report.page_tokens,
      report.num_pages, "from s", "used", "most", "cached", "running", "waiting", "output/s");
  for (size_t begin = 0; begin < count; begin += joined) {
    double us = 0, used = 0, cached = 0, running = 0, waiting = 0, most = 0;
    int64_t tokens = 0;
    for (size_t i = begin; i < std::min(count, begin + joined); ++i) {
      const double length = timeline.LengthUs(i);
      const LoadState mean = timeline.Mean(i);
      us += length;
      used += mean.pages_used * length;
      cached += mean.pages_cached * length;
      running += mean.running * length;
      waiting += mean.waiting * length;
      most = std::max(most, timeline.intervals()[i].most_pages);
      tokens += timeline.intervals()[i].tokens;
    }
    if (us <= 0) continue;
    const double pages = report.num_pages;
    const double share = used / us / pages;
    const auto bar = static_cast<size_t>(std::lround(16 * std::clamp(share, 0.0, 1.0)));
    text += absl::StrFormat("%10.1f  %s%s %3.0f %% %4.0f %% %4.0f %% %8.1f %8.1f %10.1f\n",
                            timeline.interval_us() * static_cast<double>(begin) / kUsPerS,
                            std::string(bar, '#'), std::string(16 - bar, '.'), 100 * share,
                            100 * most / pages, 100 * cached / us / pages, running / us,
                            waiting / us, static_cast<double>(tokens) / us * kUsPerS);
  }
  return text;
}

nlohmann::ordered_json ToJson(const Spread& spread) {
  return {{"mean", spread.mean},
          {"p50", spread.p50},
          {"p90", spread.p90},
          {"p99", spread.p99},
          {"max", spread.max}};
}

nlohmann::ordered_json TimelineJson(const Timeline& timeline) {
  auto list = nlohmann::ordered_json::array();
  for (size_t i = 0; i < timeline.intervals().size(); ++i) {
    const Interval& interval = timeline.intervals()[i];
    const LoadState mean = timeline.Mean(i);
    list.push_back({{"from_s", timeline.interval_us() * static_cast<double>(i) / kUsPerS},
                    {"length_s", timeline.LengthUs(i) / kUsPerS},
                    {"pages_used", mean.pages_used},
                    {"most_pages_used", interval.most_pages},
                    {"pages_cached", mean.pages_cached},
                    {"running", mean.running},
                    {"waiting", mean.waiting},
                    {"busy_s", interval.busy_us / kUsPerS},
                    {"output_tokens", interval.tokens},
                    {"prompt_tokens_computed", interval.prompt_rows}});
  }
  return list;
}

void SummarizeAdapters(const scheduler::SchedulerStats& totals, SimulationReport* report) {
  report->adapter_uses = totals.adapter_uses;
  report->adapter_hits = totals.adapter_hits;
  report->adapter_pages_loaded = totals.adapter_pages_loaded;
  report->adapter_pages_evicted = totals.adapter_pages_evicted;
  report->mean_adapter_wait_ms = static_cast<double>(totals.adapter_wait_us) / 1000 /
                                 static_cast<double>(std::max<int64_t>(1, totals.adapter_uses));
}

std::string AdaptersText(const SimulationReport& report) {
  if (report.adapter_uses == 0) return "";
  return absl::StrFormat(
      "adapters: %d uses, %.1f %% with all pages there; %d pages loaded, %d evicted; mean wait for "
      "loads %.2f ms\n",
      report.adapter_uses,
      100.0 * static_cast<double>(report.adapter_hits) / static_cast<double>(report.adapter_uses),
      report.adapter_pages_loaded, report.adapter_pages_evicted, report.mean_adapter_wait_ms);
}

}  // namespace

SimulationReport Summarize(const SimulationResult& result,
                           const scheduler::SchedulerOptions& options, double wall_s) {
  SimulationReport report;
  report.num_pages = options.num_pages;
  report.page_tokens = options.page_tokens;
  report.timeline = result.timeline;
  report.simulated_s = result.end_us / kUsPerS;
  report.wall_s = wall_s;
  report.steps = result.steps;
  report.drafted_tokens = result.drafts.drafted_tokens;
  report.accepted_tokens = result.drafts.accepted_tokens;
  report.preemptions = result.totals.preemptions;
  report.recomputed_tokens = result.totals.recomputed_tokens;
  SummarizeAdapters(result.totals, &report);
  SummarizeRequests(result, &report);
  SummarizeWindows(result.timeline, &report);
  SummarizePages(result, &report);
  const double seconds = std::max(report.simulated_s, 1e-6);
  report.busy_share = result.busy_us / kUsPerS / seconds;
  report.output_tok_s = static_cast<double>(report.output_tokens) / seconds;
  report.prompt_tok_s = static_cast<double>(report.prompt_tokens) / seconds;
  report.requests_per_s = static_cast<double>(report.done) / seconds;
  return report;
}

std::string ReportText(const SimulationReport& report) {
  std::string text = CountsText(report);
  text += absl::StrFormat("\n%-22s%10s%10s%10s%10s%10s\n", "milliseconds", "mean", "p50", "p90",
                          "p99", "max");
  text += SpreadRow("to the first token", report.ttft);
  text += SpreadRow("between two tokens", report.inter_token);
  text += SpreadRow("in the queue", report.queued);
  text += SpreadRow("whole request", report.whole);
  text += absl::StrFormat(
      "\noutput tok/s %.1f (windows of %.3g s: p50 %.1f, p10 %.1f, p1 %.1f), prompt tok/s %.1f, "
      "requests/s %.2f\n",
      report.output_tok_s, report.window_s, report.window_p50, report.window_p10, report.window_p1,
      report.prompt_tok_s, report.requests_per_s);
  text += absl::StrFormat(
      "%d steps, busy %.0f %% of the time; %.1f %% of prompt tokens cached, %d preemptions, %d "
      "tokens computed again\n",
      report.steps, 100 * report.busy_share,
      100.0 * static_cast<double>(report.cached_tokens) /
          static_cast<double>(std::max<int64_t>(1, report.prompt_tokens)),
      report.preemptions, report.recomputed_tokens);
  if (report.drafted_tokens > 0) {
    text += absl::StrFormat("%d tokens drafted, %d of them accepted\n", report.drafted_tokens,
                            report.accepted_tokens);
  }
  text += AdaptersText(report);
  text += TimelineText(report);
  text += absl::StrFormat("\nsimulated in %.3f s: %.0f times faster than life\n", report.wall_s,
                          report.simulated_s / std::max(report.wall_s, 1e-9));
  return text;
}

std::string ReportJson(const SimulationReport& report,
                       const std::vector<std::pair<std::string, std::string>>& heading) {
  nlohmann::ordered_json json;
  for (const auto& [name, text] : heading) json[name] = text;
  json["requests"] = report.requests;
  json["done"] = report.done;
  json["queue_full"] = report.queue_full;
  json["waited_too_long"] = report.waited_too_long;
  json["never_fit"] = report.never_fit;
  json["simulated_s"] = report.simulated_s;
  json["wall_s"] = report.wall_s;
  json["steps"] = report.steps;
  json["drafted_tokens"] = report.drafted_tokens;
  json["accepted_tokens"] = report.accepted_tokens;
  json["busy_share"] = report.busy_share;
  json["ttft_ms"] = ToJson(report.ttft);
  json["inter_token_ms"] = ToJson(report.inter_token);
  json["queued_ms"] = ToJson(report.queued);
  json["request_ms"] = ToJson(report.whole);
  json["output_tok_s"] = {{"mean", report.output_tok_s},
                          {"window_s", report.window_s},
                          {"p50", report.window_p50},
                          {"p10", report.window_p10},
                          {"p1", report.window_p1}};
  json["prompt_tok_s"] = report.prompt_tok_s;
  json["requests_per_s"] = report.requests_per_s;
  json["output_tokens"] = report.output_tokens;
  json["prompt_tokens"] = report.prompt_tokens;
  json["cached_tokens"] = report.cached_tokens;
  json["recomputed_tokens"] = report.recomputed_tokens;
  json["preemptions"] = report.preemptions;
  json["adapters"] = {{"uses", report.adapter_uses},
                      {"hits", report.adapter_hits},
                      {"pages_loaded", report.adapter_pages_loaded},
                      {"pages_evicted", report.adapter_pages_evicted},
                      {"mean_wait_ms", report.mean_adapter_wait_ms}};
  json["num_pages"] = report.num_pages;
  json["page_tokens"] = report.page_tokens;
  json["mean_pages_share"] = report.mean_pages_share;
  json["most_pages_share"] = report.most_pages_share;
  json["timeline"] = TimelineJson(report.timeline);
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace heddle::server
