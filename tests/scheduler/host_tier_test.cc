// The prefix cache's second tier: content that is evicted from the pool comes back from the host.
#include "catch2/catch.hpp"
#include "tests/scheduler/rig.h"

namespace heddle::scheduler {
namespace {

SchedulerOptions SmallPool(int32_t num_host_pages) {
  return {.num_pages = 8,  // 32 positions
          .num_host_pages = num_host_pages,
          .page_tokens = 4,
          .max_context = 32,
          .max_step_tokens = 32,
          .max_step_seqs = 4};
}

TEST_CASE("A prefix that was evicted comes back from the host's memory", "[scheduler][unit]") {
  Rig rig(SmallPool(16));
  GenerationRequest first = MakeRequest(24, 2, 1), second = MakeRequest(28, 2, 2);
  rig.Add(first);
  rig.RunAll();
  rig.Add(second);  // takes seven pages: those of the first go
  rig.RunAll();
  CHECK(rig.scheduler.stats().pages_swapped_out >= 5);
  first.sampling.seed = 5;
  RequestId again = rig.Add(first);
  REQUIRE(rig.Step());
  CHECK(rig.plan.token_ids.size() == 4);  // 24 less five full pages: the last token is computed
  CHECK(rig.plan.swaps_in.size() == 5);
  rig.RunAll();
  CHECK(rig.Of(again).tokens == Alone(first, 0, 2));
  CHECK(rig.Of(again).cached_tokens == 20);
  CHECK(rig.scheduler.CheckIntegrity().ok());
}

TEST_CASE("A preempted sequence continues from the host's memory and is not computed again",
          "[scheduler][unit]") {
  int64_t recomputed[2] = {};
  for (int with_host : {0, 1}) {
    Rig rig(SmallPool(with_host * 16));
    GenerationRequest first = MakeRequest(8, 20, 1), second = MakeRequest(8, 20, 2);
    RequestId a = rig.Add(first), b = rig.Add(second);
    rig.RunAll();
    CHECK(rig.scheduler.stats().preemptions >= 1);
    CHECK(rig.Of(a).tokens == Alone(first, 0, 20));
    CHECK(rig.Of(b).tokens == Alone(second, 0, 20));
    recomputed[with_host] = rig.scheduler.stats().recomputed_tokens;
  }
  CHECK(recomputed[0] >= 8);
  CHECK(recomputed[1] < 4);  // what its last page held
}

TEST_CASE("A host tier that is full forgets what was used longest ago", "[scheduler][unit]") {
  Rig rig(SmallPool(8));
  std::vector<GenerationRequest> requests;
  for (int i = 0; i < 4; ++i) {
    requests.push_back(MakeRequest(24, 1, i));
    rig.Add(requests.back());
    rig.RunAll();
  }
  CHECK(rig.scheduler.stats().host_pages_used == 8);
  RequestId oldest = rig.Add(requests[0]);
  rig.RunAll();
  CHECK(rig.Of(oldest).cached_tokens == 0);
  CHECK(rig.Of(oldest).tokens == Alone(requests[0], 0, 1));
  CHECK(rig.scheduler.CheckIntegrity().ok());
}

TEST_CASE("Pages stay where they are where computing them takes less time than moving them",
          "[scheduler][unit]") {
  Rig rig(SmallPool(16));
  rig.between = [&] {
    const auto rows = static_cast<int64_t>(rig.plan.token_ids.size());
    const auto swaps = static_cast<int64_t>(rig.plan.swaps_out.size() + rig.plan.swaps_in.size());
    rig.result.timing.swap_ns = swaps * 1'000'000;  // 1 ms a page, 1 us a row
    rig.now_us += 10 + rows + swaps * 1000;
  };
  for (int i = 0; i < 12; ++i) {
    rig.Add(MakeRequest(10 + i, 6, i));
    rig.RunAll();
  }
  const int64_t learned = rig.scheduler.stats().pages_swapped_out;
  for (int i = 0; i < 12; ++i) {
    rig.Add(MakeRequest(10 + i, 6, 20 + i));
    rig.RunAll();
  }
  CHECK(rig.scheduler.stats().pages_swapped_out == learned);
}

}  // namespace
}  // namespace heddle::scheduler
