// The loop's queue over a FakeExecutor: who finds room in it, and who is told to come again.
#include "server/loop/queue_room.h"

#include <atomic>
#include <thread>

#include "catch2/catch.hpp"
#include "server/loop/engine_loop.h"
#include "server/retry_after.h"
#include "tests/server/loop/rig.h"

namespace heddle::server {
namespace {

TEST_CASE("A full queue refuses and says its limit", "[loop][unit]") {
  engine::ExecutorLimits limits = Limits();
  limits.max_batch_seqs = 1;
  LoopUnderTest t({.max_queue = 2}, limits, /*gated=*/true);
  std::vector<std::shared_ptr<Answer>> answers;
  auto submit = [&] {
    answers.push_back(std::make_shared<Answer>());
    return t.loop->Submit(MakeRequest(*t.loop, 3, 2), SinkOf(answers.back()));
  };
  REQUIRE(submit().ok());
  t.gate->WaitForArrival();  // the first is running: it waits no more
  while (t.loop->Stats().waiting_requests > 1) std::this_thread::yield();
  absl::Status status = submit();
  while (status.ok()) status = submit();
  CHECK(absl::IsResourceExhausted(status));
  CHECK_THAT(std::string(status.message()), Catch::Contains("the limit is 2"));
  CHECK(t.loop->Stats().waiting_requests == 2);
  t.gate->Open();
  answers.pop_back();
  for (auto& answer : answers) answer->WaitForEnd();
}

TEST_CASE("A queue full of tokens refuses and says when to come again", "[loop][unit]") {
  engine::ExecutorLimits limits = Limits();
  limits.max_batch_seqs = 1;
  LoopUnderTest t({.max_queue = 100, .max_queue_tokens = 50}, limits, /*gated=*/true);
  std::vector<std::shared_ptr<Answer>> answers;
  auto submit = [&](int32_t prompt) {
    answers.push_back(std::make_shared<Answer>());
    return t.loop->Submit(MakeRequest(*t.loop, prompt, 2), SinkOf(answers.back()));
  };
  REQUIRE(submit(3).ok());
  t.gate->WaitForArrival();
  REQUIRE(submit(60).ok());  // alone in the queue it may be longer than the limit
  absl::Status status = submit(1);
  CHECK(absl::IsResourceExhausted(status));
  CHECK_THAT(std::string(status.message()), Catch::Contains("the limit is 50"));
  CHECK(RetryAfterSeconds(status) == 1);
  CHECK(t.loop->Stats().waiting_tokens >= 60);
  t.gate->Open();
  answers.pop_back();
  for (auto& answer : answers) answer->WaitForEnd();
}

TEST_CASE("A request that waits for too long is told so, as for a full queue", "[loop][unit]") {
  engine::ExecutorLimits limits = Limits();
  limits.max_batch_seqs = 1;
  LoopUnderTest t({.max_queue_us = 1}, limits, /*gated=*/true);
  auto first = std::make_shared<Answer>(), second = std::make_shared<Answer>();
  GenerationRequest endless = MakeRequest(*t.loop, 3, 190);
  REQUIRE(t.loop->Submit(endless, SinkOf(first)).ok());
  t.gate->WaitForArrival();
  REQUIRE(t.loop->Submit(MakeRequest(*t.loop, 3, 2), SinkOf(second)).ok());
  t.gate->Open();
  second->WaitForEnd();
  CHECK(second->reason() == FinishReason::kError);
  CHECK(absl::IsResourceExhausted(second->error()));
  CHECK(RetryAfterSeconds(second->error()).has_value());
  first->WaitForEnd();
  CHECK(first->reason() == FinishReason::kLength);
}

TEST_CASE("A tenant that fills the queue leaves room for others", "[loop][unit]") {
  engine::ExecutorLimits limits = Limits();
  limits.max_batch_seqs = 1;
  const auto policy = GENERATE(scheduler::PolicyKind::kFair, scheduler::PolicyKind::kFcfs);
  LoopUnderTest t({.max_queue = 100, .policy = policy}, limits,
                  /*gated=*/true);
  std::vector<std::shared_ptr<Answer>> answers;
  auto submit = [&](uint64_t tenant) {
    GenerationRequest request = MakeRequest(*t.loop, 3, 2);
    request.tenant = tenant;
    auto answer = std::make_shared<Answer>();
    absl::Status status = t.loop->Submit(request, SinkOf(answer));
    if (status.ok()) answers.push_back(answer);
    return status;
  };
  absl::Status refused;
  int taken = 0;
  while ((refused = submit(1)).ok()) ++taken;
  CHECK(absl::IsResourceExhausted(refused));
  CHECK(taken >= 94);
  CHECK(taken < 100);
  CHECK_THAT(std::string(refused.message()), Catch::Contains("Your share of the queue"));
  CHECK(submit(2).ok());
  t.gate->Open();
  for (auto& answer : answers) answer->WaitForEnd();
  CHECK(submit(1).ok());  // its share is free again
  answers.back()->WaitForEnd();
}

TEST_CASE("A client that fills its share again leaves room, however old the queue's figures are",
          "[loop][unit]") {
  QueueRoom room({.max_requests = 40, .is_per_client = true});
  const auto fill = [&room](int64_t waiting) {
    int taken = 0;
    for (; room.Check(2, 1, waiting, 0).ok(); ++taken) room.Enter(2);
    return taken;
  };
  const int taken = fill(40);
  CHECK(taken == 38);  // the first beyond 16 times what is free then
  for (int i = 0; i < taken; ++i) room.Leave(2);
  CHECK(fill(40) == taken);  // the engine has not told yet that they have left
  CHECK(room.Check(1, 1, 40, 0).ok());
  CHECK_FALSE(room.Check(2, 1, 40, 0).ok());
}

TEST_CASE("A tenant whose ten thousand requests are cancelled as they come delays no other",
          "[loop][unit]") {
  EngineLoopOptions options{.max_queue = 40, .policy = scheduler::PolicyKind::kFair};
  LoopUnderTest t(options);
  std::atomic<bool> stop{false};
  int64_t asked = 0;
  std::thread nasty([&] {
    for (; asked < 10000 || !stop; ++asked) {
      GenerationRequest request = MakeRequest(*t.loop, 30, 100);
      request.tenant = 2;
      const RequestId id = request.id;
      // Refused beyond its share of the queue; what is taken is cancelled at once.
      if (t.loop->Submit(std::move(request), [](GenerationEvent&&) {}).ok()) t.loop->Cancel(id);
    }
  });
  for (int i = 0; i < 50; ++i) {
    GenerationRequest request = MakeRequest(*t.loop, 9, 12);
    request.tenant = 1;
    auto answer = std::make_shared<Answer>();
    const std::vector<TokenId> want =
        test::FakeExecutor::Answer(request.prompt, request.sampling.seed, 12, kVocab);
    const auto taken = t.loop->Submit(std::move(request), SinkOf(answer));
    REQUIRE(taken.ok());  // there is always room
    answer->WaitForEnd();
    CHECK(answer->tokens() == want);
  }
  stop = true;
  nasty.join();
  CHECK(asked >= 10000);
  CHECK(t.loop->Drain(InAnHour()));
  CHECK(t.loop->Stats().pages_used == 0);
  CHECK(t.executor->num_live() == 0);
}

}  // namespace
}  // namespace heddle::server
