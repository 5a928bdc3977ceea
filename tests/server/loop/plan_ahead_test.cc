// The engine loop over an executor that takes two plans: tokens, ends, cancellations and faults
// while one step runs and the next one is planned and submitted.
#include <thread>

#include "catch2/catch.hpp"
#include "tests/server/loop/rig.h"

namespace heddle::server {
namespace {

LoopUnderTest AheadLoop(bool gated = false, EngineLoopOptions options = {}) {
  return LoopUnderTest(options, Limits(), gated, /*threaded=*/false, /*max_in_flight=*/2);
}

std::vector<TokenId> Alone(const GenerationRequest& request, int32_t count) {
  return test::FakeExecutor::Answer(request.prompt, request.sampling.seed, count, kVocab);
}

TEST_CASE("With two plans in flight the tokens are those of one", "[loop][unit]") {
  LoopUnderTest t = AheadLoop();
  std::vector<GenerationRequest> requests;
  std::vector<std::shared_ptr<Answer>> answers;
  for (int32_t i = 0; i < 12; ++i) {
    requests.push_back(MakeRequest(*t.loop, 5 + i, 3 + 4 * i));
    if (i % 3 == 0) requests.back().stop_tokens = {Alone(requests.back(), 3).back()};
    answers.push_back(std::make_shared<Answer>());
    REQUIRE(t.loop->Submit(requests.back(), SinkOf(answers.back())).ok());
  }
  for (size_t i = 0; i < answers.size(); ++i) {
    answers[i]->WaitForEnd();
    const int32_t length = i % 3 == 0 ? 3 : 3 + 4 * static_cast<int32_t>(i);
    CHECK(answers[i]->tokens() == Alone(requests[i], length));
    CHECK(answers[i]->reason() == (i % 3 == 0 ? FinishReason::kStop : FinishReason::kLength));
  }
  CHECK(t.loop->Drain(InAnHour()));
  const EngineStats stats = t.loop->Stats();
  CHECK(t.executor->num_ahead() > 20);
  CHECK(stats.steps_ahead == t.executor->num_ahead());
  CHECK(stats.pages_used == 0);
  CHECK(stats.orphaned_requests == 0);
  CHECK(t.executor->num_live() == 0);
}

TEST_CASE("Planning ahead can be switched off", "[loop][unit]") {
  LoopUnderTest t = AheadLoop(/*gated=*/false, {.plan_ahead = false});
  const GenerationRequest request = MakeRequest(*t.loop, 9, 12);
  auto answer = std::make_shared<Answer>();
  REQUIRE(t.loop->Submit(request, SinkOf(answer)).ok());
  answer->WaitForEnd();
  CHECK(answer->tokens() == Alone(request, 12));
  CHECK(t.executor->num_ahead() == 0);
}

TEST_CASE("The next step is submitted before the first one's result is waited for",
          "[loop][unit]") {
  LoopUnderTest t = AheadLoop(/*gated=*/true);
  auto answer = std::make_shared<Answer>();
  REQUIRE(t.loop->Submit(MakeRequest(*t.loop, 9, 20), SinkOf(answer)).ok());
  t.gate->WaitForArrival();
  CHECK(t.executor->num_ahead() == 1);
  CHECK(t.executor->num_rows() == 9 + 1);
  t.gate->Open();
  answer->WaitForEnd();
}

TEST_CASE("A request that comes while two steps are in flight is in the one behind them",
          "[loop][unit]") {
  LoopUnderTest t = AheadLoop(/*gated=*/true);
  auto first = std::make_shared<Answer>();
  auto second = std::make_shared<Answer>();
  REQUIRE(t.loop->Submit(MakeRequest(*t.loop, 9, 20), SinkOf(first)).ok());
  t.gate->WaitForArrival();
  size_t before = 0;  // tokens that the first has when the second gets its first
  REQUIRE(t.loop
              ->Submit(MakeRequest(*t.loop, 5, 1),
                       [&, sink = SinkOf(second)](GenerationEvent&& event) {
                         before = first->tokens().size();
                         sink(std::move(event));
                       })
              .ok());
  t.gate->Open();
  second->WaitForEnd();
  first->WaitForEnd();
  CHECK(before == 3);
}

TEST_CASE("Cancelling while the next step is in flight ends a request, and its row brings nothing",
          "[loop][unit]") {
  LoopUnderTest t = AheadLoop(/*gated=*/true);
  auto gone = std::make_shared<Answer>();
  auto stays = std::make_shared<Answer>();
  const GenerationRequest cancelled = MakeRequest(*t.loop, 9, 150);
  const GenerationRequest other = MakeRequest(*t.loop, 9, 30);
  REQUIRE(t.loop->Submit(cancelled, SinkOf(gone)).ok());
  t.gate->WaitForArrival();
  REQUIRE(t.loop->Submit(other, SinkOf(stays)).ok());
  t.loop->Cancel(cancelled.id);
  t.gate->Open();
  gone->WaitForEnd();
  stays->WaitForEnd();
  CHECK(gone->reason() == FinishReason::kCancelled);
  CHECK(gone->tokens() == Alone(cancelled, static_cast<int32_t>(gone->tokens().size())));
  CHECK(gone->tokens().size() <= 2);
  CHECK(stays->tokens() == Alone(other, 30));
  CHECK(t.loop->Drain(InAnHour()));
  CHECK(t.loop->Stats().pages_used == 0);
  CHECK(t.executor->num_live() == 0);
}

TEST_CASE("A fault of either step in flight ends all requests with its error", "[loop][unit]") {
  for (int fails_at : {1, 2, 3}) {
    LoopUnderTest t;
    auto fake = std::make_unique<test::FakeExecutor>(Limits(), 2);
    fake->set_before_result([waits = 0, fails_at]() mutable {
      return ++waits == fails_at ? absl::UnavailableError("the device is gone") : absl::OkStatus();
    });
    EngineLoop loop(std::move(fake), {});
    auto first = std::make_shared<Answer>();
    auto second = std::make_shared<Answer>();
    const GenerationRequest request = MakeRequest(loop, 9, 100);
    REQUIRE(loop.Submit(request, SinkOf(first)).ok());
    const absl::Status late = loop.Submit(MakeRequest(loop, 9, 100), SinkOf(second));
    first->WaitForEnd();
    CHECK(first->reason() == FinishReason::kError);
    CHECK(first->error() == absl::UnavailableError("the device is gone"));
    CHECK(first->tokens() == Alone(request, fails_at - 1));
    if (late.ok()) {
      second->WaitForEnd();
      CHECK(second->reason() == FinishReason::kError);
    }
    CHECK(loop.Stats().state == EngineState::kFailed);
    CHECK(absl::IsUnavailable(loop.Submit(MakeRequest(loop, 5, 1), SinkOf(second))));
    CHECK_FALSE(loop.Drain(InAnHour()));
  }
}

TEST_CASE("A drain past its deadline cancels what is planned ahead too", "[loop][unit]") {
  engine::ExecutorLimits limits = Limits();
  limits.num_pages = 8192;
  limits.max_context = 32768;  // too many tokens for the race between the gate and the deadline
  LoopUnderTest t({}, limits, /*gated=*/true, /*threaded=*/false, /*max_in_flight=*/2);
  auto answer = std::make_shared<Answer>();
  REQUIRE(t.loop->Submit(MakeRequest(*t.loop, 9, 32000), SinkOf(answer)).ok());
  t.gate->WaitForArrival();
  std::thread drain([&] { t.loop->Drain(EngineLoop::Clock::now()); });
  while (t.loop->Stats().state != EngineState::kDraining) std::this_thread::yield();
  t.gate->Open();
  drain.join();
  CHECK(answer->reason() == FinishReason::kCancelled);
  CHECK(t.executor->num_live() == 0);
}

TEST_CASE("Destroying a loop with two steps in flight ends every request", "[loop][unit]") {
  auto answer = std::make_shared<Answer>();
  {
    LoopUnderTest t = AheadLoop();
    REQUIRE(t.loop->Submit(MakeRequest(*t.loop, 9, 150), SinkOf(answer)).ok());
    answer->WaitForTokens(3);
  }
  answer->WaitForEnd();
}

TEST_CASE("A device that tells how long it stood still is believed", "[loop][unit]") {
  for (int64_t idle_ns : {int64_t{0}, int64_t{2'000'000'000}}) {
    LoopUnderTest t = AheadLoop();
    t.executor->set_idle_ns(idle_ns);
    auto answer = std::make_shared<Answer>();
    REQUIRE(t.loop->Submit(MakeRequest(*t.loop, 9, 11), SinkOf(answer)).ok());
    answer->WaitForEnd();
    REQUIRE(t.loop->Drain(InAnHour()));
    // Ten decodes, and the plan that ends the sequence; before the first step there was no work.
    CHECK(t.loop->Stats().between_seconds == Approx(static_cast<double>(11 * idle_ns) * 1e-9));
  }
}

}  // namespace
}  // namespace heddle::server
