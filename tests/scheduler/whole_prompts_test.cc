// Prompts of models whose rows see what is behind them: each runs whole, in one step.
#include <algorithm>
#include <map>
#include <numeric>
#include <random>

#include "catch2/catch.hpp"
#include "tests/scheduler/rig.h"

namespace heddle::scheduler {
namespace {

SchedulerOptions WholePromptOptions(int32_t num_pages) {
  SchedulerOptions options;
  options.num_pages = num_pages;
  options.page_tokens = 4;
  options.max_context = 40;
  options.max_step_tokens = 40;
  options.max_step_seqs = 6;
  options.prefix_cache = false;
  options.whole_prompts = true;
  return options;
}

GenerationRequest PooledRequest(int32_t length, int32_t salt) {
  GenerationRequest request = MakeRequest(length, 0, salt);
  request.pooling = engine::Pooling::kMean;
  return request;
}

TEST_CASE("Every prompt runs in one step, whatever comes and however few pages there are",
          "[scheduler][unit]") {
  for (const int32_t num_pages : {10, 17, 200}) {
    Rig rig(WholePromptOptions(num_pages));
    rig.SendPlans();
    std::mt19937 random(static_cast<uint32_t>(num_pages));
    std::map<RequestId, int32_t> lengths;
    int32_t together = 0;
    rig.on_plan = [&] { together = std::max<int32_t>(together, rig.plan.pools.size()); };
    for (int32_t i = 0; i < 300; ++i) {
      const int32_t length = 1 + static_cast<int32_t>(random() % 40);
      lengths[rig.Add(PooledRequest(length, i))] = length;
      if (random() % 3 != 0) continue;
      rig.Step();
      int32_t first = 0;
      for (const engine::SequenceSlice& slice : rig.plan.sequences) {
        CHECK(slice.num_tokens == slice.context_tokens);
        CHECK(rig.plan.positions[static_cast<size_t>(first)] == 0);
        first += slice.num_tokens;
      }
      CHECK(rig.plan.pools.size() == rig.plan.sequences.size());
    }
    rig.RunAll();
    for (const auto& [id, length] : lengths) CHECK(rig.Of(id).finished);
    CHECK(together > 1);
    CHECK(rig.scheduler.stats().prompt_tokens ==
          std::accumulate(lengths.begin(), lengths.end(), int64_t{0},
                          [](int64_t sum, const auto& entry) { return sum + entry.second; }));
    CHECK(rig.scheduler.CheckIntegrity().ok());
  }
}

TEST_CASE("The second text of a pair is where the plan says", "[scheduler][unit]") {
  Rig rig(WholePromptOptions(200));
  rig.SendPlans();
  GenerationRequest request = PooledRequest(9, 1);
  request.second_begin = 5;
  rig.Add(PooledRequest(3, 2));
  rig.Add(request);
  REQUIRE(rig.Step());
  REQUIRE(rig.plan.sequences.size() == 2);
  CHECK(rig.plan.sequences[0].second_begin == -1);
  CHECK(rig.plan.sequences[1].second_begin == 5);
}

TEST_CASE("What an encoder cannot do is refused", "[scheduler][unit]") {
  const SchedulerOptions options = WholePromptOptions(200);
  CHECK(Scheduler::Validate(PooledRequest(40, 0), options).ok());
  CHECK_FALSE(Scheduler::Validate(PooledRequest(41, 0), options).ok());
  CHECK_FALSE(Scheduler::Validate(MakeRequest(5, 3), options).ok());
  CHECK_FALSE(Scheduler::Validate(MakeRequest(5, 0), options).ok());
  GenerationRequest request = PooledRequest(5, 0);
  request.second_begin = 5;
  CHECK_FALSE(Scheduler::Validate(request, options).ok());
}

}  // namespace
}  // namespace heddle::scheduler
