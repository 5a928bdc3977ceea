#include "scheduler/simulation/simulator.h"

#include <algorithm>
#include <random>

#include "catch2/catch.hpp"

namespace heddle::scheduler {
namespace {

const SchedulerOptions kRoomy = {.num_pages = 4096,
                                 .page_tokens = 16,
                                 .max_context = 4096,
                                 .max_step_tokens = 512,
                                 .max_step_seqs = 256};

SimulationResult Run(const std::vector<SimulatedRequest>& workload,
                     const SimulationOptions& options) {
  absl::StatusOr<SimulationResult> result = Simulate(workload, options);
  if (!result.ok()) FAIL(result.status().ToString());
  return *std::move(result);
}

int64_t CountOf(const SimulationResult& result, SimulatedOutcome outcome) {
  return std::count_if(result.requests.begin(), result.requests.end(),
                       [&](const SimulatedResult& record) { return record.outcome == outcome; });
}

TEST_CASE("A request alone takes one step per token, from when it arrives", "[simulation]") {
  const auto result = Run({{.arrival_us = 5'000'000, .prompt_tokens = 10, .output_tokens = 3}},
                          {.scheduler = kRoomy, .machine = {.fixed_us = 1000}});
  const SimulatedResult& record = result.requests[0];
  CHECK(record.outcome == SimulatedOutcome::kDone);
  CHECK(record.started_us == 5'000'000);
  CHECK(record.first_token_us == 5'001'000);
  CHECK(record.done_us == 5'003'000);
  CHECK(record.output_tokens == 3);
  CHECK(result.inter_token.count() == 2);
  CHECK(result.inter_token.PercentileUs(0.5) == Approx(1000).epsilon(0.005));
  CHECK(result.steps == 3);
  CHECK(result.busy_us == 3000);
}

SchedulerOptions Pipeline(int32_t stages) {
  SchedulerOptions options = kRoomy;
  options.pipeline_stages = stages;
  options.max_in_flight = stages + 1;
  return options;
}

TEST_CASE("A stream alone passes all stages of a pipeline for each token", "[simulation]") {
  const auto result =
      Run({{.prompt_tokens = 10, .output_tokens = 3}}, {.scheduler = Pipeline(2),
                                                        .machine = {.fixed_us = 1000},
                                                        .later_stages = {{.fixed_us = 500}},
                                                        .link = {.latency_us = 100, .row_us = 1}});
  const SimulatedResult& record = result.requests[0];
  CHECK(record.first_token_us == 1000 + 110 + 500 + 101);
  CHECK(record.done_us == record.first_token_us + 2 * (1000 + 101 + 500 + 101));
}

TEST_CASE("Many streams keep all stages of a pipeline busy", "[simulation]") {
  const int32_t stages = GENERATE(2, 4);
  std::vector<SimulatedRequest> load(64, {.prompt_tokens = 1, .output_tokens = 200});
  SimulationOptions options{.scheduler = Pipeline(stages), .machine = {.row_us = 10}};
  options.later_stages.assign(static_cast<size_t>(stages) - 1, {.row_us = 10});
  const auto result = Run(load, options);
  // Each stage runs 64 rows per token of all streams; a bubble of 5 % is allowed.
  CHECK(result.end_us < 1.05 * 200 * 64 * 10);
  CHECK(result.end_us >= 200 * 64 * 10);
}

TEST_CASE("Chunks of a long prompt follow each other through the stages", "[simulation]") {
  const int32_t stages = 4;
  const std::vector<SimulatedRequest> load(1, {.prompt_tokens = 4000, .output_tokens = 1});
  SimulationOptions options{.scheduler = Pipeline(stages), .machine = {.row_us = 10}};
  options.later_stages.assign(stages - 1, {.row_us = 10});
  const auto result = Run(load, options);
  CHECK(result.requests[0].first_token_us < 4000 * 10 / 0.85);
}

TEST_CASE("Rows of several steps pass a slow link one after the other", "[simulation]") {
  SimulationOptions options{.scheduler = Pipeline(2), .machine = {.row_us = 1}};
  options.later_stages = {{.row_us = 1}};
  options.link.row_us = 10;
  const auto result = Run({{.prompt_tokens = 4000, .output_tokens = 1}}, options);
  // The link is the slowest part: a chunk more before and behind it, of a sixteenth each.
  CHECK(result.requests[0].first_token_us >= 4000 * 10);
  CHECK(result.requests[0].first_token_us < 4000 * 10 + 600);
}

TEST_CASE("Branches run side by side, and the rest of the answer behind their join",
          "[simulation]") {
  for (const bool side_by_side : {true, false}) {
    INFO(side_by_side);
    const auto result = Run({{.prompt_tokens = 10,
                              .output_tokens = 30,
                              .fork_at = 12,
                              .forks = 4,
                              .branch_tokens = 40,
                              .joins_side_by_side = side_by_side}},
                            {.scheduler = kRoomy, .machine = {.fixed_us = 1000}});
    const SimulatedResult& record = result.requests[0];
    CHECK(record.outcome == SimulatedOutcome::kDone);
    CHECK(record.output_tokens == 30 + 10 + 20 + 30 + 40);
    CHECK(record.joins == 1);
    CHECK(record.prompt_tokens == 10);
    CHECK(record.first_token_us == 1000);
    // A token each step: 12, the longest branch, and 18. The last token of each branch was drawn
    // and not run: side by side each of them is a part of its own, and takes a step, as does the
    // last one before the fork.
    CHECK(result.steps >= 12 + 40 + 18);
    CHECK(result.steps <= 12 + 40 + 18 + (side_by_side ? 6 : 0));
    CHECK(result.totals.live_requests == 0);
    CHECK(result.totals.pages_used == 0);
  }
}

TEST_CASE("Branches that are joined side by side are not read again", "[simulation]") {
  const auto rows_of = [](bool side_by_side) {
    const auto result = Run({{.prompt_tokens = 10,
                              .output_tokens = 30,
                              .fork_at = 12,
                              .forks = 4,
                              .branch_tokens = 40,
                              .joins_side_by_side = side_by_side}},
                            {.scheduler = kRoomy, .machine = {.fixed_us = 1000, .row_us = 1}});
    return result.busy_us - 1000 * static_cast<double>(result.steps);
  };
  // As text, the rest has the first branch's pages, and reads the 20, 30 and 40 tokens of the
  // others, with a header each. Side by side the last token of each branch is run, as it was drawn.
  CHECK(rows_of(false) - rows_of(true) >= 20 + 30 + 40 - 4);
}

TEST_CASE("Branches of a request that came early do not wait behind those who came later",
          "[simulation]") {
  SchedulerOptions narrow = kRoomy;
  narrow.max_step_seqs = 4;
  std::vector<SimulatedRequest> load(40,
                                     {.arrival_us = 1, .prompt_tokens = 8, .output_tokens = 50});
  load[0] = {.prompt_tokens = 8,
             .output_tokens = 20,
             .fork_at = 10,
             .forks = 4,
             .branch_tokens = 10,
             .joins_side_by_side = true};
  const auto result = Run(load, {.scheduler = narrow, .machine = {.fixed_us = 1000}});
  CHECK(CountOf(result, SimulatedOutcome::kDone) == 40);
  // The others hold all places when it forks, and again when it joins: its branches get the first
  // ones that become free, within 50 steps each time, and do not wait for 36 more requests.
  CHECK(result.requests[0].done_us < 250'000);
  CHECK(result.end_us > 400'000);
}

TEST_CASE("Random loads with joins end, in little memory as well", "[simulation]") {
  std::mt19937 random(7);
  const auto any = [&random](int32_t least, int32_t most) {
    return least + static_cast<int32_t>(random() % static_cast<uint32_t>(most - least + 1));
  };
  for (int round = 0; round < 20; ++round) {
    std::vector<SimulatedRequest> load;
    for (int i = 0; i < 60; ++i) {
      SimulatedRequest& one = load.emplace_back();
      one.arrival_us = any(0, 200'000);
      one.prompt_tokens = any(1, 200);
      one.output_tokens = any(2, 60);
      if (any(0, 3) == 0) continue;
      one.fork_at = any(1, one.output_tokens - 1);
      one.forks = any(1, 6);
      one.branch_tokens = any(1, 50);
      one.joins_side_by_side = any(0, 1) == 0;
    }
    SchedulerOptions options = kRoomy;
    options.num_pages = any(60, 400);
    options.max_context = 900;
    options.max_step_seqs = any(2, 16);
    const auto result = Run(load, {.scheduler = options, .machine = {.fixed_us = 1000}});
    CHECK(CountOf(result, SimulatedOutcome::kUnknown) == 0);
    CHECK(result.totals.live_requests == 0);
    CHECK(result.totals.pages_used == 0);
  }
}

TEST_CASE("Drafts that are right bring several tokens per step", "[simulation]") {
  SchedulerOptions drafting = kRoomy;
  drafting.max_draft_tokens = 16;
  const std::vector<SimulatedRequest> load(1, {.prompt_tokens = 10, .output_tokens = 3000});
  const auto result =
      Run(load, {.scheduler = drafting, .machine = {.fixed_us = 1000}, .draft_acceptance = 0.8});
  CHECK(result.requests[0].output_tokens == 3000);
  CHECK(result.inter_token.count() == 2999);
  // A step that always has 16 guesses brings (1 - 0.8^17) / (1 - 0.8) = 4.89 tokens in the mean.
  CHECK(result.steps > 3000 / 5.2);
  CHECK(result.steps < 3000 / 4.3);
  CHECK(result.end_us == Approx(1000.0 * static_cast<double>(result.steps)));
  CHECK(result.drafts.accepted_tokens + result.steps == 3000);
}

TEST_CASE("Where each row takes its time, drafts are not worth it and cost next to nothing",
          "[simulation]") {
  SchedulerOptions drafting = kRoomy;
  drafting.max_draft_tokens = 16;
  const std::vector<SimulatedRequest> load(8, {.prompt_tokens = 10, .output_tokens = 3000});
  SimulationOptions options{.scheduler = drafting, .machine = {.row_us = 1000}};
  const double plain_us = Run(load, options).end_us;
  options.draft_acceptance = 0.5;
  const auto drafted = Run(load, options);
  CHECK(drafted.end_us <= 1.01 * plain_us);
  CHECK(CountOf(drafted, SimulatedOutcome::kDone) == 8);
}

TEST_CASE("The mean wait at one server is that of queueing theory (M/D/1)", "[simulation]") {
  // One request per step of 1 ms, 500 a second: rho = 0.5, and the mean wait is
  // rho * service / (2 * (1 - rho)) = 0.5 ms (Pollaczek and Khinchine).
  SchedulerOptions one = kRoomy;
  one.max_step_seqs = 1;
  one.prefix_cache = false;
  const auto load = MakeLoad({.num_requests = 200'000,
                              .requests_per_s = 500,
                              .mean_prompt_tokens = 1,
                              .mean_output_tokens = 1});
  const auto result = Run(load, {.scheduler = one, .machine = {.fixed_us = 1000}});
  double wait_us = 0;
  for (const SimulatedResult& record : result.requests) {
    wait_us += (record.started_us - record.arrival_us) / 200'000;
  }
  CHECK(wait_us == Approx(500).epsilon(0.03));
  CHECK(result.busy_us / result.end_us == Approx(0.5).epsilon(0.01));
}

TEST_CASE("Clients ask again when they are answered, and never more at a time", "[simulation]") {
  const std::vector<SimulatedRequest> load(40, {.prompt_tokens = 4, .output_tokens = 10});
  const auto result = Run(load, {.scheduler = kRoomy, .machine = {.fixed_us = 1000}, .clients = 8});
  CHECK(CountOf(result, SimulatedOutcome::kDone) == 40);
  // Five rounds of eight, ten steps each, all eight in every step.
  CHECK(result.steps == 50);
  CHECK(result.end_us == 50'000);
  for (size_t i = 0; i < result.timeline.intervals().size(); ++i) {
    CHECK(result.timeline.Mean(i).running <= 8);
  }
}

TEST_CASE("A prefix that 100 requests share is computed once", "[simulation]") {
  const std::vector<SimulatedRequest> load(
      100, {.prompt_tokens = 1010, .output_tokens = 4, .prefix_group = 1, .prefix_tokens = 1000});
  const auto result = Run(load, {.scheduler = kRoomy, .machine = {.fixed_us = 1000}});
  const int64_t unique = 1000 + 100 * 10;
  CHECK(result.totals.prompt_tokens >= unique);
  CHECK(static_cast<double>(result.totals.prompt_tokens) <= 1.05 * unique);
  int64_t rows = 0, tokens = 0;
  for (const Interval& interval : result.timeline.intervals()) {
    rows += interval.prompt_rows;
    tokens += interval.tokens;
  }
  CHECK(rows == result.totals.prompt_tokens);
  CHECK(tokens == 100 * 4);
}

TEST_CASE("What can never fit is refused, and what meets a full queue", "[simulation]") {
  SchedulerOptions one = kRoomy;
  one.max_step_seqs = 1;
  std::vector<SimulatedRequest> load(10, {.prompt_tokens = 4, .output_tokens = 2});
  load[3].prompt_tokens = 5000;
  const auto result = Run(load, {.scheduler = one, .machine = {.fixed_us = 1000}, .max_queue = 3});
  CHECK(CountOf(result, SimulatedOutcome::kNeverFits) == 0);  // the fourth met the full queue first
  CHECK(CountOf(result, SimulatedOutcome::kDone) == 3);
  CHECK(CountOf(result, SimulatedOutcome::kQueueFull) == 7);
  const auto roomy = Run(load, {.scheduler = one, .machine = {.fixed_us = 1000}});
  CHECK(CountOf(roomy, SimulatedOutcome::kNeverFits) == 1);
  CHECK(CountOf(roomy, SimulatedOutcome::kDone) == 9);
}

TEST_CASE("Who waits too long for its start is ended", "[simulation]") {
  SchedulerOptions one = kRoomy;
  one.max_step_seqs = 1;
  one.max_queue_us = 50'000;
  const std::vector<SimulatedRequest> load(10, {.prompt_tokens = 4, .output_tokens = 20});
  const auto result = Run(load, {.scheduler = one, .machine = {.fixed_us = 1000}});
  // One starts every 20 ms: at 0, 20 and 40 ms.
  CHECK(CountOf(result, SimulatedOutcome::kDone) == 3);
  CHECK(CountOf(result, SimulatedOutcome::kWaitedTooLong) == 7);
}

TEST_CASE("As many users as the pool has room for are served without a preemption",
          "[simulation]") {
  std::mt19937 random(1);
  auto between = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  for (int round = 0; round < 60; ++round) {
    const int32_t page_tokens = 1 << between(0, 6);
    const int32_t prompt = between(1, 300), output = between(1, 200), users = between(1, 40);
    const int32_t pages = (prompt + output + page_tokens - 1) / page_tokens;
    SimulationOptions options{.scheduler = {.num_pages = users * pages,
                                            .page_tokens = page_tokens,
                                            .max_context = 512,
                                            .max_step_tokens = between(users, 512),
                                            .max_step_seqs = users,
                                            .target_step_us = kAutomaticTarget},
                              .machine = {.fixed_us = 300, .row_us = 100},
                              .clients = users};
    const std::vector<SimulatedRequest> load(static_cast<size_t>(users) * 3,
                                             {.prompt_tokens = prompt, .output_tokens = output});
    INFO("round " << round << ": " << users << " users of " << prompt << " + " << output
                  << " tokens, pages of " << page_tokens);
    const auto result = Run(load, options);
    CHECK(CountOf(result, SimulatedOutcome::kDone) == users * 3);
    CHECK(result.totals.preemptions == 0);
  }
}

TEST_CASE("Ten times the users that fit all end, and little is computed twice", "[simulation]") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const auto load = MakeLoad({.num_requests = 400,
                                .mean_prompt_tokens = 200,
                                .mean_output_tokens = 100,
                                .lengths = LengthShape::kLognormal,
                                .max_tokens = 500,
                                .seed = seed});
    SchedulerOptions small = kRoomy;
    small.num_pages = 256;  // of the 400 requests some 14 fit at a time
    small.max_context = 1024;
    const auto result =
        Run(load, {.scheduler = small, .machine = {.fixed_us = 500, .row_us = 50}, .clients = 140});
    INFO("seed " << seed);
    CHECK(CountOf(result, SimulatedOutcome::kDone) == 400);
    const auto recomputed = static_cast<double>(result.totals.recomputed_tokens);
    CHECK(recomputed < 0.5 * static_cast<double>(result.totals.prompt_tokens));
  }
}

TEST_CASE("Two runs of one load are equal", "[simulation]") {
  const auto load = MakeLoad({.num_requests = 300,
                              .requests_per_s = 40,
                              .lengths = LengthShape::kExponential,
                              .prefix_tokens = 64});
  const SimulationOptions options{.scheduler = kRoomy, .machine = {.fixed_us = 900, .row_us = 30}};
  const auto first = Run(load, options), second = Run(load, options);
  CHECK(first.end_us == second.end_us);
  CHECK(first.steps == second.steps);
  for (size_t i = 0; i < load.size(); ++i) {
    CHECK(first.requests[i].done_us == second.requests[i].done_us);
  }
}

TEST_CASE("A histogram's percentiles are within half a percent of the exact ones", "[simulation]") {
  LatencyHistogram histogram;
  std::vector<double> exact;
  std::mt19937 random(3);
  std::lognormal_distribution<double> latency(10, 2);
  for (int i = 0; i < 20000; ++i) {
    exact.push_back(latency(random));
    histogram.Add(exact.back());
  }
  for (double share : {0.01, 0.5, 0.9, 0.99, 0.999}) {
    CHECK(histogram.PercentileUs(share) == Approx(Percentile(&exact, share)).epsilon(0.0051));
  }
  CHECK(histogram.max_us() == exact.back());
  CHECK(LatencyHistogram().PercentileUs(0.5) == 0);
}

TEST_CASE("A timeline keeps its sums and means however often it is halved", "[simulation]") {
  Timeline timeline(/*max_intervals=*/8);
  // Ten seconds of 100 pages, then ten of 50; a token every 10 ms.
  for (int i = 0; i < 2000; ++i) {
    const double begin_us = i * 1e4;
    timeline.Pass(begin_us, begin_us + 1e4, {.pages_used = i < 1000 ? 100.0 : 50.0}, i % 2 == 0);
    timeline.AddTokens(begin_us + 1e4, 1, 2);
  }
  double pages_us = 0, busy_us = 0;
  int64_t tokens = 0, rows = 0;
  CHECK(timeline.intervals().size() <= 8);
  for (size_t i = 0; i < timeline.intervals().size(); ++i) {
    pages_us += timeline.Mean(i).pages_used * timeline.LengthUs(i);
    busy_us += timeline.intervals()[i].busy_us;
    tokens += timeline.intervals()[i].tokens;
    rows += timeline.intervals()[i].prompt_rows;
  }
  CHECK(pages_us == Approx(10e6 * 150));
  CHECK(busy_us == Approx(10e6));
  CHECK(tokens == 2000);
  CHECK(rows == 4000);
  CHECK(timeline.intervals()[0].most_pages == 100);
}

}  // namespace
}  // namespace heddle::scheduler
