// Requests that are paused because their clients do not read, in the engine loop; see rig.h.
#include <thread>

#include "catch2/catch.hpp"
#include "tests/server/loop/rig.h"

namespace heddle::server {
namespace {

using std::chrono_literals::operator""s;

// A loop with one request that is paused with the first step in flight.
struct PausedRequest {
  explicit PausedRequest(int32_t max_in_flight = 1, int32_t num_branches = 1)
      : t({}, Limits(), /*gated=*/true, /*threaded=*/false, max_in_flight) {
    request = MakeRequest(*t.loop, 9, 100);
    request.num_branches = num_branches;
    REQUIRE(t.loop->Submit(request, SinkOf(answer)).ok());
    t.gate->WaitForArrival();
    t.loop->Pause(request.id);
    t.gate->Open();
    answer->WaitForTokens(1);
    while (t.loop->Stats().paused_sequences != num_branches) std::this_thread::yield();
  }

  std::vector<TokenId> Whole(int32_t branch = 0) {
    return test::FakeExecutor::Answer(request.prompt, request.sampling.seed + branch, 100, kVocab);
  }

  LoopUnderTest t;
  GenerationRequest request;
  std::shared_ptr<Answer> answer = std::make_shared<Answer>();
};

TEST_CASE("A paused request waits while others run, and goes on with all its tokens",
          "[loop][unit]") {
  const int32_t in_flight = GENERATE(1, 2);
  PausedRequest p(in_flight, /*num_branches=*/2);
  auto other = std::make_shared<Answer>();
  REQUIRE(p.t.loop->Submit(MakeRequest(*p.t.loop, 9, 150), SinkOf(other)).ok());
  other->WaitForEnd();
  CHECK(p.answer->tokens().size() <= 3);  // those of steps in flight when the pause came
  p.t.loop->Resume(p.request.id);
  p.answer->WaitForEnd(2);
  for (int32_t b = 0; b < 2; ++b) CHECK(p.answer->tokens(b) == p.Whole(b));
  CHECK(p.t.loop->Drain(InAnHour()));
  CHECK(p.t.loop->Stats().paused_sequences == 0);
  CHECK(p.t.loop->Stats().pages_used == 0);
}

TEST_CASE("An engine whose requests are all paused is idle and not stuck", "[loop][unit]") {
  PausedRequest p;
  const EngineStats stats = p.t.loop->Stats();
  CHECK(stats.running_sequences == 0);
  CHECK(stats.busy_since_seconds == 0);
  CHECK_FALSE(p.t.loop->FailIfStuck(0s));
  while (p.t.loop->Stats().idle_seconds <= stats.idle_seconds) std::this_thread::yield();
  p.t.loop->Resume(p.request.id);
  CHECK_FALSE(p.t.loop->FailIfStuck(1000s));
  p.answer->WaitForEnd();
  CHECK(p.answer->tokens() == p.Whole());
}

TEST_CASE("A paused request can be cancelled", "[loop][unit]") {
  PausedRequest p;
  p.t.loop->Cancel(p.request.id);
  p.answer->WaitForEnd();
  CHECK(p.answer->reason() == FinishReason::kCancelled);
  p.t.loop->Resume(p.request.id);  // too late: ignored
  CHECK(p.t.loop->Drain(InAnHour()));
  CHECK(p.t.loop->Stats().pages_used == 0);
}

TEST_CASE("A drain waits for paused requests until its deadline", "[loop][unit]") {
  PausedRequest p;
  SECTION("the client reads in time") {
    bool in_time = false;
    std::thread drain([&] { in_time = p.t.loop->Drain(InAnHour()); });
    while (p.t.loop->Stats().state != EngineState::kDraining) std::this_thread::yield();
    p.t.loop->Resume(p.request.id);
    drain.join();
    CHECK(in_time);
    CHECK(p.answer->tokens() == p.Whole());
  }
  SECTION("it does not") {
    CHECK_FALSE(p.t.loop->Drain(EngineLoop::Clock::now()));
    CHECK(p.answer->reason() == FinishReason::kCancelled);
  }
}

TEST_CASE("Destroying the loop ends a paused request", "[loop][unit]") {
  auto answer = std::make_shared<Answer>();
  {
    PausedRequest p;
    answer = p.answer;
  }
  CHECK(answer->reason() == FinishReason::kCancelled);
}

}  // namespace
}  // namespace heddle::server
