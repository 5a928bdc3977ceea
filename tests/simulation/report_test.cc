#include "server/simulation/report.h"

#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"

namespace heddle::server {
namespace {

using scheduler::SimulatedRequest;
using scheduler::SimulationOptions;
using scheduler::SimulationResult;

SimulationOptions Options() {
  return {.scheduler = {.num_pages = 126,
                        .page_tokens = 8,
                        .max_context = 900,
                        .max_step_tokens = 1000,
                        .max_step_seqs = 10},
          .machine = {.fixed_us = 10'000}};
}

// Two requests at once, of 200 prompt tokens and 301 tokens of answer, at 10 ms a step.
SimulationResult TwoRequests() {
  const std::vector<SimulatedRequest> load(2, {.prompt_tokens = 200, .output_tokens = 301});
  auto result = scheduler::Simulate(load, Options());
  REQUIRE(result.ok());
  return *std::move(result);
}

TEST_CASE("A report counts what was simulated", "[simulation]") {
  const SimulationReport report = Summarize(TwoRequests(), Options().scheduler, 0.001);
  CHECK(report.requests == 2);
  CHECK(report.done == 2);
  CHECK(report.ttft.p50 == Approx(10));
  CHECK(report.inter_token.p99 == Approx(10).epsilon(0.005));
  CHECK(report.whole.max == Approx(3010));
  CHECK(report.simulated_s == Approx(3.01));
  CHECK(report.output_tok_s == Approx(602 / 3.01));
  CHECK(report.window_p50 == Approx(200).epsilon(0.02));
  CHECK(report.busy_share == Approx(1));
  // Pages of 8 tokens: from 2 * 25 in the first step to 2 * 63, the whole pool, in the last.
  CHECK(report.most_pages_share == Approx(1).epsilon(0.02));
  CHECK(report.mean_pages_share == Approx(0.7).epsilon(0.02));
}

TEST_CASE("The JSON report has the same numbers, and a timeline", "[simulation]") {
  const SimulationReport report = Summarize(TwoRequests(), Options().scheduler, 0.001);
  const auto json = nlohmann::json::parse(ReportJson(report, {{"model", "a \"b\""}}));
  CHECK(json["model"] == "a \"b\"");
  CHECK(json["done"] == 2);
  CHECK(json["ttft_ms"]["p99"].get<double>() == Approx(10));
  CHECK(json["num_pages"] == 126);
  int64_t tokens = 0;
  for (const auto& interval : json["timeline"]) tokens += interval["output_tokens"].get<int64_t>();
  CHECK(tokens == 602);
}

TEST_CASE("The text names every percentile, and no line is wider than 110 columns",
          "[simulation]") {
  const std::string text = ReportText(Summarize(TwoRequests(), Options().scheduler, 0.001));
  for (const char* word : {"p50", "p90", "p99", "to the first token", "between two tokens",
                           "output tok/s", "pages of 8 tokens, 126 in all", "3010 times"}) {
    INFO(word);
    CHECK(text.find(word) != std::string::npos);
  }
  size_t column = 0, widest = 0;
  for (char c : text) {
    column = c == '\n' ? 0 : column + 1;
    widest = std::max(widest, column);
  }
  CHECK(widest <= 110);
}

TEST_CASE("A simulation without any request done reports zeros", "[simulation]") {
  auto result =
      scheduler::Simulate(std::vector<SimulatedRequest>{{.prompt_tokens = 5000}}, Options());
  REQUIRE(result.ok());
  const SimulationReport report = Summarize(*result, Options().scheduler, 0.001);
  CHECK(report.never_fit == 1);
  CHECK(report.output_tok_s == 0);
  CHECK(nlohmann::json::accept(ReportJson(report, {})));
  CHECK(ReportSvg(*result, report, "empty").ends_with("</svg>\n"));
}

}  // namespace
}  // namespace heddle::server
