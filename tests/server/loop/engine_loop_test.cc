// The engine loop over a FakeExecutor; see rig.h.
#include "server/loop/engine_loop.h"

#include <atomic>
#include <limits>
#include <thread>

#include "catch2/catch.hpp"
#include "server/loop/request_checks.h"
#include "tests/server/loop/rig.h"

namespace heddle::server {
namespace {

TEST_CASE("A request's sink gets the tokens that the executor draws", "[loop][unit]") {
  LoopUnderTest t;
  GenerationRequest request = MakeRequest(*t.loop, 9, 12);
  request.num_branches = 2;
  auto answer = std::make_shared<Answer>();
  REQUIRE(t.loop->Submit(request, SinkOf(answer)).ok());
  answer->WaitForEnd(2);
  for (int32_t b = 0; b < 2; ++b) {
    CHECK(answer->reason(b) == FinishReason::kLength);
    CHECK(answer->tokens(b) ==
          test::FakeExecutor::Answer(request.prompt, request.sampling.seed + b, 12, kVocab));
  }
  CHECK(answer->queued_seconds() >= 0);
  CHECK(t.loop->Drain(InAnHour()));
  EngineStats stats = t.loop->Stats();
  CHECK(stats.pages_used == 0);
  CHECK(stats.generated_tokens == 24);
  CHECK(stats.orphaned_requests == 0);
  CHECK(stats.busy_since_seconds == 0);
  CHECK(t.executor->num_live() == 0);
}

TEST_CASE("A request that cannot fit is refused and its sink is never called", "[loop][unit]") {
  LoopUnderTest t;
  auto answer = std::make_shared<Answer>();
  absl::Status status = t.loop->Submit(MakeRequest(*t.loop, 200, 1), SinkOf(answer));
  CHECK(absl::IsInvalidArgument(status));
  CHECK(answer.use_count() == 1);
}

TEST_CASE("A token that the model does not know is refused by name", "[loop][unit]") {
  LoopUnderTest t;
  GenerationRequest request = MakeRequest(*t.loop, 9, 12);
  request.prompt[3] = kVocab;
  const absl::Status status = t.loop->Submit(request, [](GenerationEvent&&) { FAIL("called"); });
  REQUIRE(absl::IsInvalidArgument(status));
  CHECK(status.message().find("1000") != absl::string_view::npos);
}

// The front end has refused them; what comes without it must not end the process either.
TEST_CASE("No id of a request's sampling is beyond the model's tokens", "[loop][unit]") {
  LoopUnderTest t;
  const auto refused = [&t](const std::function<void(engine::SamplingParams*)>& set) {
    GenerationRequest request = MakeRequest(*t.loop, 9, 12);
    set(&request.sampling);
    return absl::IsInvalidArgument(t.loop->Submit(request, [](GenerationEvent&&) {}));
  };
  using Params = engine::SamplingParams;
  CHECK(refused([](Params* params) { params->logit_bias = {{kVocab, 1.0f}}; }));
  CHECK(refused([](Params* params) { params->logit_bias = {{-1, 1.0f}}; }));
  CHECK(refused([](Params* params) { params->bad_words = {{1, kVocab}}; }));
  CHECK(refused([](Params* params) { params->min_tokens_banned = {kVocab}; }));
  CHECK_FALSE(refused([](Params* params) { params->logit_bias = {{kVocab - 1, 1.0f}}; }));
}

TEST_CASE("Whoever bans every token is told so, and a model without numbers is the server's fault",
          "[loop][unit]") {
  GenerationRequest request;
  CHECK(BansUntil(request) == 0);
  request.sampling.min_tokens = 5;
  CHECK(BansUntil(request) == 0);
  request.sampling.min_tokens_banned = {2};
  CHECK(BansUntil(request) == 5);  // its sixth token may be the end
  request.sampling_of.assign(2, request.sampling);
  request.sampling_of[1].bad_words = {{1}};
  CHECK(BansUntil(request) == std::numeric_limits<int32_t>::max());
  const absl::Status own = StatusOf(engine::DrawFailure::kNothingToDraw, true);
  CHECK(absl::IsInvalidArgument(own));
  CHECK_THAT(std::string(own.message()), Catch::Contains("'bad_words'"));
  CHECK(absl::IsInternal(StatusOf(engine::DrawFailure::kNothingToDraw, false)));
}

TEST_CASE("The history of a request tells its chunks, decodes and end", "[loop][unit]") {
  LoopUnderTest t;
  GenerationRequest request = MakeRequest(*t.loop, 50, 6);  // 32 rows a step: two chunks
  request.label = "of-the-client";
  auto answer = std::make_shared<Answer>();
  REQUIRE(t.loop->Submit(request, SinkOf(answer)).ok());
  answer->WaitForEnd();
  REQUIRE(t.loop->Drain(InAnHour()));
  auto history = t.loop->History("of-the-client");
  REQUIRE(history.has_value());
  CHECK(history->finished);
  CHECK(history->reason == FinishReason::kLength);
  CHECK(history->prompt_tokens == 50);
  CHECK(history->generated_tokens == 6);
  CHECK(history->queued_seconds >= 0);
  using Kind = HistoryEntry::Kind;
  std::vector<Kind> kinds;
  for (const HistoryEntry& entry : history->steps) kinds.push_back(entry.kind);
  CHECK(kinds == std::vector<Kind>{Kind::kQueued, Kind::kAdmitted, Kind::kPrompt, Kind::kDecode,
                                   Kind::kFinished});
  CHECK(history->steps[2].steps == 2);
  CHECK(history->steps[2].tokens == 50);
  CHECK(history->steps[3].steps == 5);  // the first token comes with the last chunk
  CHECK(t.loop->History(std::to_string(static_cast<uint64_t>(request.id))).has_value());
  CHECK_FALSE(t.loop->History("12345").has_value());
  CHECK(t.loop->Histories().size() == 1);
}

TEST_CASE("Only so many requests are remembered, the newest", "[loop][unit]") {
  RequestHistories trace;
  GenerationRequest request;
  request.prompt = {1, 2};
  for (uint64_t i = 1; i <= RequestHistories::kMaxRequests + 5; ++i) {
    request.id = RequestId{i};
    trace.Queued(request, 0);
  }
  CHECK(trace.Histories(0).size() == RequestHistories::kMaxRequests);
  CHECK_FALSE(trace.History("5", 0).has_value());
  CHECK(trace.History("6", 0).has_value());
  // The expected number of events of each kind.
  using scheduler::StepNote;
  for (int i = 0; i < 200; ++i) {
    const StepNote note{RequestId{6}, 0,
                        i % 2 == 0 ? StepNote::Kind::kAdmitted : StepNote::Kind::kPreempted, 1};
    trace.Step({&note, 1}, i, i + 1);
  }
  CHECK(trace.History("6", 0)->steps.size() == RequestHistories::kMaxEntries);
  CHECK(trace.History("6", 0)->forgotten_entries == 201 - 64);
  CHECK(trace.History("6", 0)->preemptions == 100);
}

TEST_CASE("The requests that run a tree's branches are told with each of them", "[server][unit]") {
  RequestHistories trace;
  const auto add = [&](uint64_t id, const char* tree, const char* branch, int64_t at_us) {
    GenerationRequest request;
    request.id = RequestId{id};
    request.prompt = {1};
    request.label = tree[0] == 0 ? "else" : "call";
    request.tree = tree;
    request.branch = branch;
    trace.Queued(request, at_us);
  };
  add(1, "call", "0", 1000);
  trace.Finished(RequestId{1}, 0, FinishReason::kStop, /*is_last=*/true, 3000);
  add(2, "call", "0.0", 3000);
  add(3, "", "", 3000);
  add(4, "call", "0.1", 3000);
  trace.Token(RequestId{4}, 7);
  for (const char* name : {"call", "2"}) {
    INFO(name);
    const auto history = trace.History(name, 4000);
    REQUIRE(history.has_value());
    CHECK(history->tree == "call");
    REQUIRE(history->runs.size() == 3);
    CHECK(history->runs[0].branch == "0");
    CHECK(history->runs[0].finished);
    CHECK(history->runs[0].end_seconds == 0.002);
    CHECK(history->runs[1].branch == "0.0");
    CHECK(history->runs[1].begin_seconds == 0.002);
    CHECK_FALSE(history->runs[2].finished);
    CHECK(history->runs[2].generated_tokens == 7);
    CHECK(history->runs[2].end_seconds == 0.003);
  }
  CHECK(trace.History("3", 4000)->runs.empty());
  CHECK_FALSE(trace.History("", 4000).has_value());
}

TEST_CASE("Cancelling ends a request with its pages free one step later", "[loop][unit]") {
  LoopUnderTest t({}, Limits(), /*gated=*/true);
  auto answer = std::make_shared<Answer>();
  GenerationRequest request = MakeRequest(*t.loop, 9, 150);
  REQUIRE(t.loop->Submit(request, SinkOf(answer)).ok());
  t.gate->WaitForArrival();
  t.loop->Cancel(request.id);
  t.loop->Cancel(RequestId{12345});  // unknown: ignored
  t.gate->Open();
  answer->WaitForEnd();
  CHECK(answer->reason() == FinishReason::kCancelled);
  CHECK(answer->tokens().size() == 1);  // of the step that was running
  CHECK(t.loop->Drain(InAnHour()));
  CHECK(t.loop->Stats().pages_used == 0);
  CHECK(t.executor->num_live() == 0);
}

TEST_CASE("A request that is cancelled before the loop hears of it is not run", "[loop][unit]") {
  LoopUnderTest t({.policy = scheduler::PolicyKind::kFair}, Limits(), /*gated=*/true);
  auto runs = std::make_shared<Answer>();
  REQUIRE(t.loop->Submit(MakeRequest(*t.loop, 9, 4), SinkOf(runs)).ok());
  t.gate->WaitForArrival();  // from here on messages wait for the step's end
  GenerationRequest request = MakeRequest(*t.loop, 9, 4);
  request.num_branches = 2;
  auto answer = std::make_shared<Answer>();
  REQUIRE(t.loop->Submit(request, SinkOf(answer)).ok());
  t.loop->Cancel(request.id);
  t.gate->Open();
  answer->WaitForEnd(2);
  for (int32_t b = 0; b < 2; ++b) {
    CHECK(answer->reason(b) == FinishReason::kCancelled);
    CHECK(answer->tokens(b).empty());
  }
  runs->WaitForEnd();
  CHECK(t.loop->Drain(InAnHour()));
  CHECK(t.loop->Histories().size() == 1);  // nothing is remembered of it
  CHECK(t.loop->Stats().prompt_tokens == 9);
  CHECK(t.loop->Stats().waiting_requests == 0);
}

TEST_CASE("Cancelling one branch lets the others finish", "[loop][unit]") {
  LoopUnderTest t({}, Limits(), /*gated=*/true);
  auto answer = std::make_shared<Answer>();
  GenerationRequest request = MakeRequest(*t.loop, 9, 20);
  request.num_branches = 3;
  REQUIRE(t.loop->Submit(request, SinkOf(answer)).ok());
  t.gate->WaitForArrival();
  t.loop->CancelBranch(request.id, 1);
  t.gate->Open();
  answer->WaitForEnd(3);
  CHECK(answer->reason(0) == FinishReason::kLength);
  CHECK(answer->reason(1) == FinishReason::kCancelled);
  CHECK(answer->tokens(2) ==
        test::FakeExecutor::Answer(request.prompt, request.sampling.seed + 2, 20, kVocab));
}

TEST_CASE("A failed executor ends all requests with its error and refuses new ones",
          "[loop][unit]") {
  LoopUnderTest t({}, Limits(), /*gated=*/true);
  auto first = std::make_shared<Answer>(), second = std::make_shared<Answer>();
  REQUIRE(t.loop->Submit(MakeRequest(*t.loop, 9, 20), SinkOf(first)).ok());
  t.gate->WaitForArrival();
  REQUIRE(t.loop->Submit(MakeRequest(*t.loop, 9, 20), SinkOf(second)).ok());
  t.gate->Open(absl::InternalError("the device fell off the bus"));
  first->WaitForEnd();
  second->WaitForEnd();
  CHECK(first->reason() == FinishReason::kError);
  CHECK(first->error().message() == "the device fell off the bus");
  CHECK(second->reason() == FinishReason::kError);
  CHECK(t.loop->Stats().state == EngineState::kFailed);
  absl::Status status = t.loop->Submit(MakeRequest(*t.loop, 9, 20), SinkOf(first));
  CHECK(absl::IsUnavailable(status));
  CHECK_THAT(std::string(status.message()), Catch::Contains("fell off the bus"));
  CHECK_FALSE(t.loop->Drain(InAnHour()));
}

TEST_CASE("Draining finishes what runs and takes nothing new", "[loop][unit]") {
  LoopUnderTest t({}, Limits(), /*gated=*/true);
  auto answer = std::make_shared<Answer>();
  REQUIRE(t.loop->Submit(MakeRequest(*t.loop, 9, 20), SinkOf(answer)).ok());
  t.gate->WaitForArrival();
  std::thread drain([&] { CHECK(t.loop->Drain(InAnHour())); });
  while (t.loop->Stats().state != EngineState::kDraining) std::this_thread::yield();
  CHECK(absl::IsUnavailable(t.loop->Submit(MakeRequest(*t.loop, 3, 2), SinkOf(answer))));
  t.gate->Open();
  drain.join();
  CHECK(answer->reason() == FinishReason::kLength);
  CHECK(answer->tokens().size() == 20);
}

TEST_CASE("A drain past its deadline cancels the rest", "[loop][unit]") {
  engine::ExecutorLimits limits = Limits();
  limits.num_pages = 8192;
  limits.max_context = 32768;  // too many tokens for the race between the gate and the deadline
  LoopUnderTest t({}, limits, /*gated=*/true);
  auto answer = std::make_shared<Answer>();
  REQUIRE(t.loop->Submit(MakeRequest(*t.loop, 9, 32000), SinkOf(answer)).ok());
  t.gate->WaitForArrival();
  bool in_time = true;
  std::thread drain([&] { in_time = t.loop->Drain(EngineLoop::Clock::now()); });
  while (t.loop->Stats().state != EngineState::kDraining) std::this_thread::yield();
  t.gate->Open();
  drain.join();
  CHECK(answer->reason() == FinishReason::kCancelled);
  CHECK_FALSE(in_time);
}

TEST_CASE("Destroying the loop ends every request", "[loop][unit]") {
  auto answer = std::make_shared<Answer>();
  {
    LoopUnderTest t;
    REQUIRE(t.loop->Submit(MakeRequest(*t.loop, 9, 150), SinkOf(answer)).ok());
  }
  answer->WaitForEnd();
  CHECK(answer.use_count() == 1);
}

TEST_CASE("Time without requests counts as idle, time with one does not", "[loop][unit]") {
  LoopUnderTest t({}, Limits(), /*gated=*/true);
  while (t.loop->Stats().idle_seconds == 0) std::this_thread::yield();
  auto answer = std::make_shared<Answer>();
  REQUIRE(t.loop->Submit(MakeRequest(*t.loop, 9, 1), SinkOf(answer)).ok());
  t.gate->WaitForArrival();
  const double before = t.loop->Stats().idle_seconds;
  CHECK(before > 0);
  while (t.loop->Stats().busy_since_seconds == 0) std::this_thread::yield();
  CHECK(t.loop->Stats().idle_seconds == before);
  t.gate->Open();
  answer->WaitForEnd();
  CHECK(t.loop->Drain(InAnHour()));
  while (t.loop->Stats().idle_seconds <= before) std::this_thread::yield();
}

TEST_CASE("A step that hangs shows in the stats", "[loop][unit]") {
  LoopUnderTest t({}, Limits(), /*gated=*/true);
  auto answer = std::make_shared<Answer>();
  REQUIRE(t.loop->Submit(MakeRequest(*t.loop, 9, 1), SinkOf(answer)).ok());
  t.gate->WaitForArrival();
  while (t.loop->Stats().busy_since_seconds == 0) std::this_thread::yield();
  t.gate->Open();
  answer->WaitForEnd();
  CHECK(t.loop->Drain(InAnHour()));
  CHECK(t.loop->Stats().busy_since_seconds == 0);
}

TEST_CASE("Requests that wait for a step that does not end get an error", "[loop][unit]") {
  using std::chrono_literals::operator""s;
  const bool threaded = GENERATE(false, true);
  const int32_t in_flight = GENERATE(1, 2);
  LoopUnderTest t({}, Limits(), /*gated=*/true, threaded, in_flight);
  auto runs = std::make_shared<Answer>();
  GenerationRequest request = MakeRequest(*t.loop, 9, 12);
  request.num_branches = 2;
  REQUIRE(t.loop->Submit(request, SinkOf(runs)).ok());
  t.gate->WaitForArrival();
  auto posted = std::make_shared<Answer>();  // the loop's thread never hears of it
  REQUIRE(t.loop->Submit(MakeRequest(*t.loop, 9, 12), SinkOf(posted)).ok());
  CHECK_FALSE(t.loop->FailIfStuck(1000s));
  CHECK_FALSE(t.loop->IsStuck());
  while (!t.loop->FailIfStuck(0s)) std::this_thread::yield();

  CHECK(t.loop->IsStuck());
  CHECK(t.loop->Stats().state == EngineState::kFailed);
  for (int32_t branch : {0, 1}) CHECK(runs->reason(branch) == FinishReason::kError);
  CHECK(posted->reason() == FinishReason::kError);
  for (const auto& answer : {runs, posted}) {
    CHECK_THAT(std::string(answer->error().message()), Catch::Contains("has not ended"));
    CHECK(answer.use_count() == 2);  // that one and the loop's list above: the sinks are gone
  }
  CHECK_FALSE(t.loop->FailIfStuck(0s));
  CHECK(t.loop->Stats().waiting_requests == 0);
  CHECK(t.loop->Stats().orphaned_requests == 0);
  CHECK_FALSE(t.loop->Drain(EngineLoop::Clock::now()));  // and waits for nobody
  const absl::Status refused = t.loop->Submit(MakeRequest(*t.loop, 9, 1), SinkOf(posted));
  CHECK(absl::IsUnavailable(refused));
  CHECK_THAT(std::string(refused.message()), Catch::Contains("has not ended"));

  t.gate->Open();  // it does end, late: nobody is told of anything more
  t.loop.reset();
  CHECK(runs->tokens().empty());
}

TEST_CASE("An engine whose steps end is never found stuck", "[loop][unit]") {
  using std::chrono_literals::operator""h;
  LoopUnderTest t({}, Limits(), /*gated=*/false, /*threaded=*/true, /*max_in_flight=*/2);
  std::atomic<bool> done = false;
  std::thread watch([&] {
    while (!done) t.loop->FailIfStuck(1h);
  });
  for (int i = 0; i < 20; ++i) {
    auto answer = std::make_shared<Answer>();
    REQUIRE(t.loop->Submit(MakeRequest(*t.loop, 9, 100), SinkOf(answer)).ok());
    answer->WaitForEnd();
    CHECK(answer->reason() == FinishReason::kLength);
  }
  done = true;
  watch.join();
  CHECK_FALSE(t.loop->IsStuck());
}

TEST_CASE("A step's tokens are delivered while the next step runs", "[loop][unit]") {
  const bool threaded = GENERATE(false, true);
  const auto begin = std::chrono::steady_clock::now();
  LoopUnderTest t({}, Limits(), /*gated=*/false, threaded);
  std::mutex mutex;
  std::condition_variable delivered;
  size_t tokens = 0;
  size_t steps = 0;
  std::vector<size_t> seen;  // tokens that the sink had when a step was about to end
  // The step does not end before the token of the one before it is with the sink.
  t.executor->set_before_result([&] {
    std::unique_lock lock(mutex);
    if (steps < 5) delivered.wait(lock, [&] { return tokens >= steps; });
    seen.push_back(tokens);
    ++steps;
    return absl::OkStatus();
  });
  auto answer = std::make_shared<Answer>();
  const EventSink sink = SinkOf(answer);
  REQUIRE(t.loop
              ->Submit(MakeRequest(*t.loop, 9, 5),
                       [&](GenerationEvent&& event) {
                         {
                           std::lock_guard lock(mutex);
                           tokens += event.tokens.size();
                         }
                         delivered.notify_all();
                         sink(std::move(event));
                       })
              .ok());
  answer->WaitForEnd();
  CHECK(t.loop->Drain(InAnHour()));
  seen.resize(5);
  CHECK(seen == std::vector<size_t>{0, 1, 2, 3, 4});
  // Only what the loop itself needs counts of that time.
  CHECK(t.loop->Stats().between_seconds <=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
}

TEST_CASE("Requests and cancellations from several threads keep their tokens apart",
          "[loop][unit]") {
  engine::ExecutorLimits limits = Limits();
  limits.num_pages = 60;  // a few preemptions
  const bool threaded = GENERATE(false, true);
  LoopUnderTest t({.max_queue = 1000}, limits, /*gated=*/false, threaded);
  constexpr int kThreads = 4, kRequests = 40;
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&t] {
      std::vector<std::pair<GenerationRequest, std::shared_ptr<Answer>>> mine;
      for (int i = 0; i < kRequests; ++i) {
        GenerationRequest request = MakeRequest(*t.loop, 1 + i % 50, 1 + i % 30);
        mine.emplace_back(request, std::make_shared<Answer>());
        if (!t.loop->Submit(request, SinkOf(mine.back().second)).ok()) std::abort();
        if (i % 5 == 4) t.loop->Cancel(mine[i - 2].first.id);
      }
      for (auto& [request, answer] : mine) {
        answer->WaitForEnd();
        std::vector<TokenId> want = test::FakeExecutor::Answer(
            request.prompt, request.sampling.seed, request.max_tokens, kVocab);
        if (answer->reason() == FinishReason::kCancelled) want.resize(answer->tokens().size());
        if (answer->tokens() != want) std::abort();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(t.loop->Drain(InAnHour()));
  CHECK(t.loop->Stats().pages_used == 0);
  CHECK(t.loop->Stats().orphaned_requests == 0);
  CHECK(t.executor->num_live() == 0);
}

}  // namespace
}  // namespace heddle::server
