// The results of a simulation (latencies, throughput and page use) as text, as JSON and as a plot.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scheduler/simulation/simulator.h"

namespace heddle::server {

// Milliseconds.
struct Spread {
  double mean = 0, p50 = 0, p90 = 0, p99 = 0, max = 0;
};

struct SimulationReport {
  int64_t requests = 0, done = 0, never_fit = 0, queue_full = 0, waited_too_long = 0;
  Spread ttft, inter_token, queued, whole;  // over finished requests
  double simulated_s = 0;
  double wall_s = 0;
  int64_t steps = 0;
  int64_t drafted_tokens = 0;   // guesses that steps verified
  int64_t accepted_tokens = 0;  // of these, tokens of answers
  double busy_share = 0;        // share of time in which a step ran
  double output_tok_s = 0, prompt_tok_s = 0, requests_per_s = 0;
  // Output tokens per second in windows of window_s.
  double window_s = 0, window_p50 = 0, window_p10 = 0, window_p1 = 0;
  int32_t num_pages = 0;
  int32_t page_tokens = 0;
  double mean_pages_share = 0, most_pages_share = 0;  // pages used, of all
  int64_t output_tokens = 0, prompt_tokens = 0, cached_tokens = 0, recomputed_tokens = 0;
  int64_t preemptions = 0;
  // Sequences with an adapter, those of them that needed no loads, pages, and what one sequence
  // waited for loads in its place.
  int64_t adapter_uses = 0, adapter_hits = 0, adapter_pages_loaded = 0, adapter_pages_evicted = 0;
  double mean_adapter_wait_ms = 0;
  scheduler::Timeline timeline;
};

// `wall_s`: the real time that the simulation took.
SimulationReport Summarize(const scheduler::SimulationResult& result,
                           const scheduler::SchedulerOptions& options, double wall_s);

// Tables of 80 to 100 columns.
std::string ReportText(const SimulationReport& report);

// One JSON object; times in milliseconds, `timeline` with one entry per interval. Keys are stable.
// `heading`: members in front, e.g. "model"; texts.
std::string ReportJson(const SimulationReport& report,
                       const std::vector<std::pair<std::string, std::string>>& heading);

// An SVG picture: tokens per second, sequences, pages and latencies. plot.cc.
std::string ReportSvg(const scheduler::SimulationResult& result, const SimulationReport& report,
                      const std::string& title);

}  // namespace heddle::server
