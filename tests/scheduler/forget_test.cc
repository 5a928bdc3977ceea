// What a scheduler does when its executor has lost all pages and the steps in flight.
#include "catch2/catch.hpp"
#include "tests/scheduler/rig.h"

namespace heddle::scheduler {
namespace {

SchedulerOptions ForgetOptions() {
  SchedulerOptions options;
  options.num_pages = 40;
  options.page_tokens = 4;
  options.max_context = 100;
  options.max_step_tokens = 8;
  options.max_step_seqs = 4;
  return options;
}

TEST_CASE("What was running is preempted and begins anew from its tokens", "[scheduler][unit]") {
  Rig rig(ForgetOptions());
  const GenerationRequest request = MakeRequest(13, 6);
  const RequestId id = rig.Add(request);
  for (int i = 0; i < 4; ++i) REQUIRE(rig.Step());  // two chunks, then tokens
  REQUIRE(rig.Of(id).tokens.size() == 3);
  rig.Lose();
  CHECK(rig.scheduler.stats().pages_used == 0);
  CHECK(rig.scheduler.stats().pages_cached == 0);
  CHECK(rig.scheduler.stats().preemptions == 1);
  REQUIRE(rig.Step());
  CHECK(rig.plan.positions.front() == 0);
  CHECK(rig.plan.begun.empty());
  rig.RunAll();
  CHECK(rig.Of(id).tokens == Alone(request, 0, 6));
}

TEST_CASE("The lost pages are nobody's prefix, and the preemptions are noted",
          "[scheduler][unit]") {
  Rig rig(ForgetOptions());
  rig.Add(MakeRequest(12, 2));
  rig.RunAll();
  REQUIRE(rig.scheduler.stats().pages_cached > 0);
  rig.Add(MakeRequest(12, 5, 1));
  REQUIRE(rig.Step());
  REQUIRE(rig.executor.Abandon() == false);
  rig.executor.set_recover([] { return absl::OkStatus(); });
  REQUIRE(rig.executor.Abandon());
  std::vector<StepNote> notes;
  rig.scheduler.ForgetPages(rig.now_us, &notes);
  REQUIRE(notes.size() == 1);
  CHECK(notes[0].kind == StepNote::Kind::kPreempted);
  CHECK(rig.scheduler.stats().pages_cached == 0);
  const RequestId again = rig.Add(MakeRequest(12, 2));
  rig.RunAll();
  CHECK(rig.Of(again).cached_tokens == 0);
  CHECK(rig.scheduler.CheckIntegrity().ok());
}

TEST_CASE("Means of hidden states are summed up from the first position again",
          "[scheduler][unit]") {
  Rig rig(ForgetOptions());
  GenerationRequest request = MakeRequest(12, 0);
  request.pooling = engine::Pooling::kMean;
  rig.Add(request);
  REQUIRE(rig.Step());
  REQUIRE(rig.plan.pools.size() == 1);
  CHECK(rig.plan.pools[0].num_rows == 8);
  rig.Lose();
  REQUIRE(rig.Step());
  REQUIRE(rig.plan.pools.size() == 1);
  CHECK(rig.plan.pools[0].num_rows == 8);
}

TEST_CASE("Scores that were in flight are reported by a later step, once", "[scheduler][unit]") {
  Rig rig(ForgetOptions(), 2);
  GenerationRequest request = MakeRequest(20, 1);
  request.prompt_logprobs = 0;
  const RequestId id = rig.Add(request);
  rig.ahead = [] { return true; };
  REQUIRE(rig.Step());  // the second chunk is in flight
  const size_t reported = rig.Of(id).scores.size();
  REQUIRE(reported == 8);
  rig.Lose();
  rig.RunAll();
  CHECK(rig.Of(id).scores.size() == request.prompt.size() - 1);
}

TEST_CASE("A prompt that wants nothing behind it ends without a token", "[scheduler][unit]") {
  Rig rig(ForgetOptions(), 2);
  GenerationRequest request = MakeRequest(16, 0);
  const RequestId id = rig.Add(request);
  rig.ahead = [] { return true; };
  REQUIRE(rig.Step());  // its last chunk is in flight
  rig.Lose();
  rig.RunAll();
  CHECK(rig.Of(id).finished);
  CHECK(rig.Of(id).tokens.empty());
}

TEST_CASE("Paused sequences give up their pages and go on when they may", "[scheduler][unit]") {
  Rig rig(ForgetOptions());
  const GenerationRequest request = MakeRequest(6, 5);
  const RequestId id = rig.Add(request);
  REQUIRE(rig.Step());
  rig.scheduler.Pause(id);
  rig.Lose();
  CHECK(!rig.Step());
  rig.scheduler.Resume(id, rig.now_us);
  rig.RunAll();
  CHECK(rig.Of(id).tokens == Alone(request, 0, 5));
}

}  // namespace
}  // namespace heddle::scheduler
