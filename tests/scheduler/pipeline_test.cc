// Steps of a pipeline: streams are shared out among those in flight, and no plan counts on a token
// that is not drawn.
#include "scheduler/pipeline.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <vector>

#include "catch2/catch.hpp"
#include "scheduler/step_budget.h"
#include "tests/scheduler/rig.h"

namespace heddle::scheduler {
namespace {

SchedulerOptions PipelineOptions(int32_t stages) {
  return {.num_pages = 64,
          .page_tokens = 4,
          .max_context = 128,
          .max_step_tokens = 32,
          .max_step_seqs = 12,
          .pipeline_stages = stages};
}

TEST_CASE("No plan of a pipeline counts on a token that is not drawn", "[scheduler][unit]") {
  const int32_t stages = GENERATE(2, 3, 5);
  Rig rig(PipelineOptions(stages), stages + 1);
  rig.ahead = [] { return true; };
  GenerationRequest branches = MakeRequest(9, 12, 3);
  branches.num_branches = 3;
  const RequestId a = rig.Add(branches);
  const RequestId b = rig.Add(MakeRequest(7, 20, 4));
  const RequestId c = rig.Add(MakeRequest(100, 5, 5));
  while (rig.Step()) CHECK(rig.plan.undrawn.empty());
  for (int32_t i = 0; i < 3; ++i) CHECK(rig.Of(a, i).tokens == Alone(branches, i, 12));
  CHECK(rig.Of(b).tokens == Alone(MakeRequest(7, 20, 4), 0, 20));
  CHECK(rig.Of(c).tokens == Alone(MakeRequest(100, 5, 5), 0, 5));
  CHECK(rig.executor.num_ahead() > 10);
  CHECK(rig.executor.num_live() == 0);
  CHECK(rig.scheduler.stats().pages_used == 0);
}

TEST_CASE("Each step in flight has its part of the streams", "[scheduler][unit]") {
  const int32_t stages = GENERATE(2, 3);
  Rig rig(PipelineOptions(stages), stages + 1);
  rig.ahead = [] { return true; };
  for (int32_t i = 0; i < 8; ++i) rig.Add(MakeRequest(3, 30, i));
  const int32_t most = (8 + stages - 1) / stages;
  int32_t steps = 0;
  while (rig.Step()) {
    const bool all_run = rig.scheduler.stats().running_sequences == 8;
    if (!all_run || rig.plan.sequences.front().kind != engine::SliceKind::kDecode) continue;
    ++steps;
    CHECK(static_cast<int32_t>(rig.plan.sequences.size()) <= most);
    CHECK(static_cast<int32_t>(rig.plan.sequences.size()) >= 8 / stages);
  }
  CHECK(steps > 20 * stages);
}

TEST_CASE("Chunks of one prompt follow each other", "[scheduler][unit]") {
  Rig rig(PipelineOptions(2), 3);
  rig.ahead = [] { return true; };
  rig.Add(MakeRequest(100, 2));
  REQUIRE(rig.Step());
  CHECK(rig.plan.token_ids.size() == 32);
  CHECK(rig.executor.num_ahead() == 2);  // two more are in flight behind it
  rig.RunAll();
}

// Without plans ahead each step has a part of the streams, too: those that have waited longest.
TEST_CASE("Streams take turns however few steps are planned ahead", "[scheduler][unit]") {
  Rig rig(PipelineOptions(3), 4);
  std::vector<RequestId> ids;
  for (int32_t i = 0; i < 7; ++i) ids.push_back(rig.Add(MakeRequest(3, 40, i)));
  while (rig.Of(ids.back()).tokens.empty()) REQUIRE(rig.Step());
  std::map<engine::SequenceId, int32_t> rows;  // the most urgent first
  for (int32_t i = 0; i < 21; ++i) {
    REQUIRE(rig.Step());
    CHECK(rig.plan.sequences.size() == 3);
    for (const engine::SequenceSlice& slice : rig.plan.sequences) ++rows[slice.id];
  }
  REQUIRE(rows.size() == 7);
  // The first one runs in each step, so that somebody always gets pages; the rest share two places.
  for (const auto& [id, count] : rows) {
    CHECK((id == rows.begin()->first ? count == 21 : std::abs(count - 7) <= 1));
  }
}

TEST_CASE("A group keeps those that have drawn longest ago", "[scheduler][unit]") {
  std::vector<Sequence> all(5);
  const std::vector<uint64_t> drawn = {7, 3, 7, 2, 3};
  std::vector<Sequence*> decodes;
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].drawn_step = drawn[i];
    all[i].num_planned = 1;
    decodes.push_back(&all[i]);
  }
  KeepGroup(/*in_flight=*/1, /*stages=*/3, &decodes);  // 2 of 6
  CHECK(decodes == std::vector<Sequence*>{&all[0], &all[3]});
  CHECK(all[4].num_planned == 0);
  KeepGroup(/*in_flight=*/9, /*stages=*/2, &decodes);
  CHECK(decodes.size() == 2);
}

// Microseconds of a step on a machine whose rows attend to their contexts at a price.
int64_t StepUs(const engine::StepPlan& plan) {
  int64_t us = 2000;
  for (const engine::SequenceSlice& slice : plan.sequences) {
    us += slice.num_tokens * (10 + slice.context_tokens / 256);
  }
  return us;
}

TEST_CASE("Chunks of a prompt take equally long, so that later ones have fewer rows",
          "[scheduler][unit]") {
  SchedulerOptions options = PipelineOptions(2);
  options.num_pages = 2048;
  options.max_context = 8192;
  options.max_step_tokens = 2048;
  options.prefix_cache = false;
  Rig rig(options, 3);
  rig.ahead = [] { return true; };
  rig.between = [&rig] { rig.now_us += StepUs(rig.plan); };
  rig.Add(MakeRequest(8000, 1));
  rig.RunAll();  // so that the machine is known
  rig.Add(MakeRequest(8000, 1));
  std::vector<int64_t> us;
  std::vector<size_t> rows;
  while (rig.Step()) {
    if (rig.plan.token_ids.empty()) continue;
    us.push_back(StepUs(rig.plan));
    rows.push_back(rig.plan.token_ids.size());
  }
  REQUIRE(rows.size() > 10);
  CHECK(rows.size() <= 32 * 2 + 1);
  us.pop_back();  // what was left
  const auto [least, most] = std::minmax_element(us.begin(), us.end());
  CHECK(static_cast<double>(*most) < 1.15 * static_cast<double>(*least));
  CHECK(rows.front() > rows[rows.size() - 2] * 5 / 4);
}

TEST_CASE("The chunk that passes all stages while a pipeline fills is no measure of a step",
          "[scheduler][unit]") {
  const SchedulerOptions options = PipelineOptions(4);
  StepBudget budget(options);
  Flight chunk;
  chunk.cost = {.rows = 64, .attended = 64 * 65 / 2, .sequences = 1};
  int64_t now_us = 4000;  // four stages of a millisecond each
  budget.CountStep(chunk, /*fills=*/true, /*swap_us=*/0, now_us);
  for (int i = 0; i < 8; ++i) {
    budget.CountStep(chunk, /*fills=*/false, /*swap_us=*/0, now_us += 1000);
  }
  CHECK(budget.PredictUs(chunk.cost) == Approx(1000));
}

TEST_CASE("Streams that have a pipeline to themselves are timed as they are", "[scheduler][unit]") {
  const SchedulerOptions options = PipelineOptions(4);
  StepBudget budget(options);
  Flight decodes;
  decodes.cost = {.rows = 2, .attended = 200, .sequences = 2};
  for (int i = 0; i < 8; ++i) {
    decodes.planned_us = i * 4000;
    budget.CountStep(decodes, /*fills=*/i > 0, /*swap_us=*/0, (i + 1) * 4000);
  }
  CHECK(budget.PredictUs(decodes.cost) == Approx(4000));
}

TEST_CASE("While nothing is known of the machine, chunks are small", "[scheduler][unit]") {
  SchedulerOptions options = PipelineOptions(2);
  options.num_pages = 1024;
  options.max_context = 2048;
  options.max_step_tokens = 512;
  Rig rig(options, 3);
  rig.ahead = [] { return true; };
  rig.Add(MakeRequest(1600, 2));
  for (int i = 0; i < 8 && rig.Step(); ++i) {
    CHECK(rig.plan.token_ids.size() == kLeastPipelineRows);
  }
}

TEST_CASE("A prompt has as many chunks as its steps and its stages allow", "[scheduler][unit]") {
  CHECK(PipelineChunks(1e6, 0, 4) == 128);
  CHECK(PipelineChunks(1e6, 1e-9, 4) == 128);
  CHECK(PipelineChunks(1e6, 1e6, 4) == 32);
  // 50 chunks: their steps take as much more as the second stage waits for the first chunk.
  CHECK(PipelineChunks(1e6, 400, 2) == Approx(50));
}

TEST_CASE("Each stage has eight chunks, of a size that pays", "[scheduler][unit]") {
  CHECK(PipelineRows(4096, 2) == 256);
  CHECK(PipelineRows(2048, 2) == 128);
  CHECK(PipelineRows(4096, 4) == 128);
  CHECK(PipelineRows(10, 2) == kLeastPipelineRows);
  CHECK(PipelineRows(0, 64) == kLeastPipelineRows);
  CHECK(PipelineRows(int64_t{1} << 60, 2) > 0);
}

}  // namespace
}  // namespace heddle::scheduler
