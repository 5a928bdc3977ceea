// Many adapters in a pool that has room for few: nobody waits longer than the policies' bound, what
// is popular stays, and every page that is loaded is accounted for.
// HEDDLE_ADAPTER_REQUESTS sets the number of requests (default 20,000), and prints the figures of
// docs/benchmarks/adapters.md if it is set.
#include <algorithm>
#include <cstdlib>
#include <string>

#include "absl/strings/str_format.h"
#include "catch2/catch.hpp"
#include "scheduler/simulation/simulator.h"

namespace heddle::scheduler {
namespace {

// Rank 16 on all linears of an 8B model, in pages of 16 positions (2 MiB): 84 MB are 40 pages.
constexpr int32_t kAdapterPages = 40;
constexpr int64_t kStarvationUs = 2'000'000;

SimulationOptions FewAdaptersFit(PolicyKind policy) {
  SimulationOptions options;
  options.scheduler = {.num_pages = 60 * kAdapterPages,
                       .page_tokens = 16,
                       .max_context = 4096,
                       .max_step_tokens = 1024,
                       .max_step_seqs = 64,
                       .policy = policy,
                       .starvation_us = kStarvationUs,
                       .adapter_slots = 128,
                       .adapter_load_pages = 6,  // 0.5 ms of a step of 5
                       .adapter_page_us = 84};   // 2 MiB at 25 GB/s
  options.machine = {.fixed_us = 5000, .row_us = 5, .adapter_page_us = 84};
  return options;
}

TEST_CASE("With 2000 adapters in a pool for 60 everybody is served within the bound",
          "[simulation]") {
  const char* asked = std::getenv("HEDDLE_ADAPTER_REQUESTS");
  const int32_t num_requests = asked ? std::atoi(asked) : 20'000;
  const auto load = MakeLoad({.num_requests = num_requests,
                              .requests_per_s = 40,
                              .mean_prompt_tokens = 64,
                              .mean_output_tokens = 16,
                              .lengths = LengthShape::kExponential,
                              .adapters = 2000,
                              .adapter_pages = kAdapterPages,
                              .max_tokens = 512});
  for (const PolicyKind policy : {PolicyKind::kFcfs, PolicyKind::kShortest}) {
    const SimulationOptions options = FewAdaptersFit(policy);
    const absl::StatusOr<SimulationResult> result = Simulate(load, options);
    if (!result.ok()) FAIL(result.status().ToString());
    std::vector<double> waits_us;
    for (const SimulatedResult& record : result->requests) {
      REQUIRE(record.outcome == SimulatedOutcome::kDone);
      waits_us.push_back(record.started_us - record.arrival_us);
    }
    const double longest_us = *std::max_element(waits_us.begin(), waits_us.end());
    const SchedulerStats& totals = result->totals;
    const double hits =
        static_cast<double>(totals.adapter_hits) / static_cast<double>(totals.adapter_uses);
    if (asked) {
      WARN(absl::StrFormat(
          "%s: waits of %d requests in ms: p50 %.1f, p99 %.1f, longest %.1f; hits %.1f %%; pages "
          "loaded %d, evicted %d; mean wait for loads %.1f ms; between tokens p50 %.2f ms, p99 "
          "%.2f ms; preemptions %d; overdue %d; steps %d",
          TraitsOf(policy).name, num_requests, Percentile(&waits_us, 0.5) / 1000,
          Percentile(&waits_us, 0.99) / 1000, longest_us / 1000, 100 * hits,
          totals.adapter_pages_loaded, totals.adapter_pages_evicted,
          static_cast<double>(totals.adapter_wait_us) / 1000 /
              static_cast<double>(totals.adapter_uses),
          result->inter_token.PercentileUs(0.5) / 1000,
          result->inter_token.PercentileUs(0.99) / 1000, totals.preemptions, totals.overdue,
          result->steps));
    }
    // Who is overdue waits for those ahead of it at most, whose answers have at most 512 tokens in
    // steps of 6 ms.
    CHECK(longest_us < kStarvationUs + 512 * 6000);
    // The 60 most popular of 2,000 get 57 % of the requests by Zipf's law; some of them are
    // missing, because the pool has sequences and less popular adapters in it as well.
    CHECK(hits > 0.3);
    CHECK(hits < 0.7);
    CHECK(totals.adapter_pages_loaded - totals.adapter_pages_evicted == totals.adapter_pages);
    // Loads make no step of others longer than a tenth and a prompt's chunk.
    CHECK(result->inter_token.PercentileUs(0.5) < 1.2 * 5000);
  }
}

}  // namespace
}  // namespace heddle::scheduler
