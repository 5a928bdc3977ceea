// What the loop does while its executor is lost and may come back.
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "catch2/catch.hpp"
#include "server/retry_after.h"
#include "tests/server/loop/rig.h"

namespace heddle::server {
namespace {

const absl::Status kLost = absl::UnavailableError("Rank 1 is lost.");

// A loop whose executor fails in step `fails_at` and in two later ones, and comes back when it may.
struct LossUnderTest : LoopUnderTest {
  explicit LossUnderTest(int fails_at, int32_t max_in_flight = 1, bool threaded = false)
      : LoopUnderTest({}, Limits(), false, threaded, max_in_flight) {
    executor->set_before_result([this, fails_at] {
      const int step = ++steps;
      const bool fails = step == fails_at || step == 4 * fails_at || step == 9 * fails_at;
      return fails ? kLost : absl::OkStatus();
    });
    executor->set_recover([this] {
      ++looks;
      looks.notify_all();
      return may_recover ? final_error : kLost;
    });
  }
  void WaitForLooks(int count) {
    for (int now = looks; now < count; now = looks) looks.wait(now);
  }
  std::shared_ptr<Answer> Ask(int32_t prompt, int32_t tokens, std::vector<TokenId>* want) {
    GenerationRequest request = MakeRequest(*loop, prompt, tokens);
    *want = test::FakeExecutor::Answer(request.prompt, request.sampling.seed, tokens, kVocab);
    auto answer = std::make_shared<Answer>();
    REQUIRE(loop->Submit(std::move(request), SinkOf(answer)).ok());
    return answer;
  }

  std::atomic<int> steps{0};
  std::atomic<int> looks{0};
  std::atomic<bool> may_recover{false};
  absl::Status final_error;  // set before may_recover is
};

TEST_CASE("Answers go on behind a lost executor as if nothing had been", "[loop][unit]") {
  const int32_t max_in_flight = GENERATE(1, 2, 3);
  const bool threaded = max_in_flight == 1 && GENERATE(false, true);
  const int fails_at = GENERATE(2, 5, 7);
  LossUnderTest t(fails_at, max_in_flight, threaded);
  t.may_recover = true;
  std::vector<std::vector<TokenId>> wants(6);
  std::vector<std::shared_ptr<Answer>> answers;
  for (int i = 0; i < 6; ++i) {
    // A request that comes just now may be refused; the first one cannot.
    GenerationRequest request = MakeRequest(*t.loop, 3 + 9 * i, 20 + i);
    wants[i] = test::FakeExecutor::Answer(request.prompt, request.sampling.seed, 20 + i, kVocab);
    answers.push_back(std::make_shared<Answer>());
    while (!t.loop->Submit(request, SinkOf(answers.back())).ok()) std::this_thread::yield();
  }
  for (int i = 0; i < 6; ++i) {
    answers[i]->WaitForEnd();
    CHECK(answers[i]->reason() == FinishReason::kLength);
    CHECK(answers[i]->tokens() == wants[i]);
  }
  CHECK(t.loop->Stats().recoveries > 0);
  CHECK(t.loop->Drain(InAnHour()));
  CHECK(t.loop->Stats().pages_used == 0);
  CHECK(t.executor->num_live() == 0);
}

TEST_CASE("While the executor is lost, new requests are told to come again", "[loop][unit]") {
  LossUnderTest t(3);
  std::vector<TokenId> want;
  const auto answer = t.Ask(5, 10, &want);
  t.WaitForLooks(2);
  const EngineStats stats = t.loop->Stats();
  CHECK(stats.state == EngineState::kRecovering);
  CHECK(stats.why == "Rank 1 is lost.");
  CHECK(stats.pages_used == 0);
  const absl::Status refused = t.loop->Submit(MakeRequest(*t.loop, 4, 4), [](GenerationEvent&&) {});
  CHECK(absl::IsUnavailable(refused));
  CHECK(std::string(refused.message()) == "Rank 1 is lost.");
  CHECK(RetryAfterSeconds(refused).has_value());
  t.executor->set_lost(false);
  t.may_recover = true;
  answer->WaitForEnd();
  CHECK(answer->tokens() == want);
  while (t.loop->Stats().state != EngineState::kServing) std::this_thread::yield();
}

TEST_CASE("A loss is noticed while nothing runs", "[loop][unit]") {
  LossUnderTest t(1000);
  t.loop->CheckExecutor();  // finds nothing
  t.executor->set_lost(true);
  t.loop->CheckExecutor();
  t.WaitForLooks(1);
  CHECK(t.loop->Stats().state == EngineState::kRecovering);
  t.executor->set_lost(false);
  t.may_recover = true;
  while (t.loop->Stats().state != EngineState::kServing) std::this_thread::yield();
  std::vector<TokenId> want;
  const auto answer = t.Ask(5, 10, &want);
  answer->WaitForEnd();
  CHECK(answer->tokens() == want);
}

TEST_CASE("What is cancelled while the executor is lost ends at once", "[loop][unit]") {
  LossUnderTest t(3);
  GenerationRequest request = MakeRequest(*t.loop, 5, 10);
  const RequestId id = request.id;
  const auto answer = std::make_shared<Answer>();
  REQUIRE(t.loop->Submit(std::move(request), SinkOf(answer)).ok());
  t.WaitForLooks(1);
  t.loop->Cancel(id);
  answer->WaitForEnd();
  CHECK(answer->reason() == FinishReason::kCancelled);
  CHECK(t.loop->Drain(InAnHour()));
}

TEST_CASE("A drain ends what waits for a lost executor", "[loop][unit]") {
  LossUnderTest t(3);
  std::vector<TokenId> want;
  const auto answer = t.Ask(5, 10, &want);
  t.WaitForLooks(1);
  CHECK(!t.loop->Drain(EngineLoop::Clock::now()));
  CHECK(answer->reason() == FinishReason::kCancelled);
  CHECK(absl::IsUnavailable(t.loop->Submit(MakeRequest(*t.loop, 4, 4), [](GenerationEvent&&) {})));
}

TEST_CASE("A loop is destroyed while its executor is lost", "[loop][unit]") {
  auto answer = std::make_shared<Answer>();
  {
    LossUnderTest t(3);
    REQUIRE(t.loop->Submit(MakeRequest(*t.loop, 5, 10), SinkOf(answer)).ok());
    t.WaitForLooks(1);
    t.loop.reset();
  }
  answer->WaitForEnd();
  CHECK(answer->reason() == FinishReason::kCancelled);
}

TEST_CASE("An executor that does not come back fails all requests, once", "[loop][unit]") {
  LossUnderTest t(3);
  std::vector<TokenId> want;
  const auto answer = t.Ask(5, 10, &want);
  t.WaitForLooks(1);
  t.final_error = absl::AbortedError("nobody came");
  t.may_recover = true;
  answer->WaitForEnd();
  CHECK(answer->reason() == FinishReason::kError);
  CHECK(std::string(answer->error().message()) == "nobody came");
  while (t.loop->Stats().state != EngineState::kFailed) std::this_thread::yield();
  CHECK(absl::IsUnavailable(t.loop->Submit(MakeRequest(*t.loop, 4, 4), [](GenerationEvent&&) {})));
  const int looks = t.looks;
  t.loop->CheckExecutor();
  CHECK(t.loop->Drain(InAnHour()) == false);
  CHECK(t.looks == looks);
}

TEST_CASE("Time in which the executor is lost is no step that hangs", "[loop][unit]") {
  LossUnderTest t(3);
  std::vector<TokenId> want;
  const auto answer = t.Ask(5, 10, &want);
  t.WaitForLooks(1);
  const int64_t begin = t.loop->Stats().steps;
  t.WaitForLooks(10);  // half a second
  CHECK(t.loop->Stats().busy_since_seconds < 0.4);
  CHECK(t.loop->Stats().steps == begin);
  CHECK(!t.loop->FailIfStuck(std::chrono::duration<double>(10)));
}

}  // namespace
}  // namespace heddle::server
