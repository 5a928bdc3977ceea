#include "scheduler/scheduler.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <type_traits>

#include "catch2/catch.hpp"
#include "tests/scheduler/rig.h"

namespace heddle::scheduler {
namespace {

// 16 pages of 4: 64 positions.
SchedulerOptions Small() {
  return {.num_pages = 16,
          .page_tokens = 4,
          .max_context = 40,
          .max_step_tokens = 32,
          .max_step_seqs = 8};
}

TEST_CASE("A prompt runs in one step and its decodes one token each", "[scheduler][unit]") {
  Rig rig(Small());
  GenerationRequest request = MakeRequest(6, 3);
  RequestId id = rig.Add(request);
  REQUIRE(rig.Step());
  CHECK(rig.plan.token_ids == request.prompt);
  CHECK(rig.plan.positions == std::vector<engine::Position>{0, 1, 2, 3, 4, 5});
  REQUIRE(rig.plan.spans.size() == 2);
  CHECK(rig.plan.spans[1].num_tokens == 2);
  REQUIRE(rig.plan.samples.size() == 1);
  CHECK(rig.plan.samples[0].row == 5);
  CHECK(rig.plan.samples[0].position == 6);
  REQUIRE(rig.Step());
  CHECK(rig.plan.positions == std::vector<engine::Position>{6});
  CHECK(rig.plan.sequences[0].context_tokens == 7);
  CHECK(rig.plan.kv_slots[0].offset == 2);
  REQUIRE(rig.Step());
  CHECK(rig.Of(id).finished);
  CHECK(rig.Of(id).reason == FinishReason::kLength);
  CHECK(rig.Of(id).tokens == Alone(request, 0, 3));
  CHECK(rig.scheduler.stats().pages_used == 0);
  // One more plan tells the executor to forget the sequence.
  REQUIRE(rig.Step());
  CHECK(rig.plan.token_ids.empty());
  CHECK(rig.plan.ended.size() == 1);
  CHECK(rig.executor.num_live() == 0);
  CHECK_FALSE(rig.Step());
}

TEST_CASE("Decodes come first and a prompt fills the rest of the budget", "[scheduler][unit]") {
  SchedulerOptions options = Small();
  options.max_step_tokens = 10;
  Rig rig(options);
  rig.Add(MakeRequest(4, 20, 1));
  rig.Add(MakeRequest(4, 20, 2));
  REQUIRE(rig.Step());
  RequestId id = rig.Add(MakeRequest(17, 2, 3));
  REQUIRE(rig.Step());
  REQUIRE(rig.plan.sequences.size() == 3);
  CHECK(rig.plan.token_ids.size() == 10);
  CHECK(rig.plan.sequences[2].num_tokens == 8);
  CHECK(rig.plan.samples.size() == 2);
  REQUIRE(rig.Step());
  CHECK(rig.plan.token_ids.size() == 10);
  CHECK(rig.plan.samples.size() == 2);
  REQUIRE(rig.Step());  // 8 + 8 + 1 = 17
  CHECK(rig.plan.token_ids.size() == 3);
  CHECK(rig.plan.samples.size() == 3);
  rig.RunAll();
  CHECK(rig.Of(id).tokens == Alone(MakeRequest(17, 2, 3), 0, 2));
}

TEST_CASE("Branches share the prompt's pages and copy its half-filled page", "[scheduler][unit]") {
  Rig rig(Small());
  GenerationRequest request = MakeRequest(6, 4);
  request.num_branches = 3;
  RequestId id = rig.Add(request);
  REQUIRE(rig.Step());
  REQUIRE(rig.plan.samples.size() == 3);
  CHECK(rig.plan.token_ids.size() == 6);
  for (int b = 0; b < 3; ++b) CHECK(rig.plan.samples[b].row == 5);
  CHECK(rig.scheduler.stats().pages_used == 2);
  REQUIRE(rig.Step());
  CHECK(rig.plan.page_copies.size() == 2);  // the last of three keeps the original
  CHECK(rig.scheduler.stats().pages_used == 4);
  rig.RunAll();
  for (int b = 0; b < 3; ++b) {
    CHECK(rig.Of(id, b).tokens == Alone(request, b, 4));
    CHECK(rig.Of(id, b).finished);
  }
  CHECK(rig.scheduler.stats().pages_used == 0);
}

TEST_CASE("When pages run out the latest arrival is computed again", "[scheduler][unit]") {
  SchedulerOptions options = Small();
  options.num_pages = 6;  // 24 positions for two requests of 20 each
  Rig rig(options);
  GenerationRequest first = MakeRequest(4, 16, 1), second = MakeRequest(4, 16, 2);
  RequestId a = rig.Add(first), b = rig.Add(second);
  while (!rig.Of(a).finished) {
    REQUIRE(rig.Step());
    REQUIRE(rig.scheduler.CheckIntegrity().ok());
  }
  CHECK(rig.scheduler.stats().preemptions == 1);
  CHECK_FALSE(rig.Of(b).finished);
  rig.RunAll();
  CHECK(rig.Of(a).tokens == Alone(first, 0, 16));
  CHECK(rig.Of(b).tokens == Alone(second, 0, 16));
  CHECK(rig.scheduler.stats().pages_used == 0);
  CHECK(rig.scheduler.stats().recomputed_tokens > 0);
}

TEST_CASE("A request that can never fit is refused with what would", "[scheduler][unit]") {
  SchedulerOptions options = Small();
  absl::Status status = Scheduler::Validate(MakeRequest(40, 1), options);
  CHECK(absl::IsInvalidArgument(status));
  CHECK(status.message() == "The prompt has 40 tokens; at most 39 fit into the model's context.");
  CHECK(Scheduler::Validate(MakeRequest(39, 1), options).ok());
  CHECK(Scheduler::Validate(MakeRequest(40, 0), options).ok());
  options.num_pages = 4;
  status = Scheduler::Validate(MakeRequest(16, 1), options);
  CHECK(status.message() ==
        "The prompt has 16 tokens; at most 15 fit into the KV memory of this server.");
  GenerationRequest many = MakeRequest(3, 1);
  many.num_branches = 9;
  CHECK(absl::IsInvalidArgument(Scheduler::Validate(many, options)));
  CHECK(absl::IsInvalidArgument(Scheduler::Validate(MakeRequest(0, 1), options)));
  CHECK(absl::IsInvalidArgument(Scheduler::Validate(MakeRequest(3, -1), options)));
}

TEST_CASE("The end of the context finishes a sequence by length", "[scheduler][unit]") {
  SchedulerOptions options = Small();
  options.max_context = 10;
  Rig rig(options);
  RequestId id = rig.Add(MakeRequest(7, 1000));
  rig.RunAll();
  CHECK(rig.Of(id).tokens.size() == 3);
  CHECK(rig.Of(id).reason == FinishReason::kLength);
}

TEST_CASE("A pool smaller than the context ends a sequence where the pool ends",
          "[scheduler][unit]") {
  SchedulerOptions options = Small();
  options.num_pages = 3;
  Rig rig(options);
  RequestId id = rig.Add(MakeRequest(7, 1000));
  rig.RunAll();
  CHECK(rig.Of(id).tokens.size() == 5);
  CHECK(rig.Of(id).reason == FinishReason::kLength);
}

TEST_CASE("A stop token is the last one reported", "[scheduler][unit]") {
  Rig rig(Small());
  GenerationRequest request = MakeRequest(5, 10);
  std::vector<TokenId> alone = Alone(request, 0, 10);
  request.stop_tokens = {alone[2]};
  RequestId id = rig.Add(request);
  rig.RunAll();
  alone.resize(3);
  CHECK(rig.Of(id).tokens == alone);
  CHECK(rig.Of(id).reason == FinishReason::kStop);
}

TEST_CASE("Cancelling frees the pages at once, also while a step is in flight",
          "[scheduler][unit]") {
  Rig rig(Small());
  RequestId a = rig.Add(MakeRequest(9, 10, 1)), b = rig.Add(MakeRequest(9, 10, 2));
  REQUIRE(rig.Step());
  rig.Cancel(a);
  CHECK(rig.Of(a).finished);
  CHECK(rig.Of(a).reason == FinishReason::kCancelled);
  CHECK(rig.scheduler.stats().pages_used == 3);
  rig.between = [&] { rig.Cancel(b); };
  REQUIRE(rig.Step());
  CHECK(rig.scheduler.stats().pages_used == 0);
  CHECK(rig.Of(b).reason == FinishReason::kCancelled);
  CHECK(rig.Of(b).tokens.size() == 1);
  rig.between = nullptr;
  rig.RunAll();
  CHECK(rig.executor.num_live() == 0);
  CHECK(rig.scheduler.idle());
}

TEST_CASE("Cancelling the branch that computes the prompt leaves it to the next",
          "[scheduler][unit]") {
  SchedulerOptions options = Small();
  options.max_step_tokens = 4;
  Rig rig(options);
  GenerationRequest request = MakeRequest(10, 3);
  request.num_branches = 3;
  RequestId id = rig.Add(request);
  REQUIRE(rig.Step());
  rig.CancelBranch(id, 0);
  rig.CancelBranch(id, 2);
  CHECK(rig.scheduler.CheckIntegrity().ok());
  rig.RunAll();
  CHECK(rig.Of(id, 0).reason == FinishReason::kCancelled);
  CHECK(rig.Of(id, 2).reason == FinishReason::kCancelled);
  CHECK(rig.Of(id, 1).tokens == Alone(request, 1, 3));
  CHECK(rig.scheduler.stats().prompt_tokens == 10);  // nothing was computed twice
  CHECK(rig.executor.num_live() == 0);
}

TEST_CASE("max_tokens 0 with prompt logprobs scores the prompt in chunks and draws nothing",
          "[scheduler][unit]") {
  SchedulerOptions options = Small();
  options.max_step_tokens = 4;
  Rig rig(options);
  GenerationRequest request = MakeRequest(10, 0);
  request.prompt_logprobs = 2;
  RequestId id = rig.Add(request);
  rig.RunAll();
  CHECK(rig.Of(id).tokens.empty());
  CHECK(rig.Of(id).reason == FinishReason::kLength);
  REQUIRE(rig.Of(id).scores.size() == 9);
  for (int i = 0; i < 9; ++i) {
    CHECK(rig.Of(id).scores[i].token == request.prompt[i + 1]);
    CHECK(rig.Of(id).scores[i].top.size() == 2);
    std::vector<TokenId> history(request.prompt.begin(), request.prompt.begin() + i + 1);
    CHECK(rig.Of(id).scores[i].logprob ==
          test::FakeExecutor::Logprob(history, request.prompt[i + 1]));
  }
}

TEST_CASE("A draw that found no token ends its branch with an error and goes nowhere",
          "[scheduler][unit]") {
  Rig rig({.num_pages = 16,
           .page_tokens = 4,
           .max_context = 40,
           .max_step_tokens = 16,
           .max_step_seqs = 4});
  GenerationRequest request;
  request.prompt = {1, 2, 3};
  request.max_tokens = 5;
  const RequestId id = rig.Add(request);
  REQUIRE(rig.Step());
  rig.scheduler.Plan(++rig.now_us, &rig.plan);
  REQUIRE(rig.executor.Submit(rig.plan, {}).ok());
  REQUIRE(rig.executor.Wait(&rig.result).ok());
  rig.result.tokens[0].token = engine::kNoToken;
  rig.events.clear();
  rig.scheduler.Commit(rig.result, rig.now_us, &rig.events);
  rig.Book();
  const BranchOutcome& outcome = rig.outcome[{id, 0}];
  CHECK(outcome.finished);
  CHECK(outcome.reason == FinishReason::kError);
  CHECK(outcome.tokens.size() == 1);  // that of the first step
  CHECK(rig.scheduler.stats().pages_used == 0);
}

// One step whose first sample brings `forced` behind its token.
void StepWithForced(std::vector<TokenId> forced, Rig* rig) {
  rig->between = [rig, forced] {
    engine::SequenceGain& gain = rig->result.gains[0];
    const engine::SampledToken drawn = rig->result.tokens[gain.token_begin];
    gain.token_begin = static_cast<int32_t>(rig->result.tokens.size());
    gain.num_tokens = 1 + static_cast<int32_t>(forced.size());
    rig->result.tokens.push_back(drawn);
    for (TokenId token : forced) rig->result.tokens.emplace_back().token = token;
  };
  REQUIRE(rig->Step());
  rig->between = nullptr;
}

TEST_CASE("Forced tokens run in the next step as rows of one chunk, and one sample follows",
          "[scheduler][unit]") {
  Rig rig(Small());
  const RequestId id = rig.Add(MakeRequest(5, 10));
  StepWithForced({7, 8, 9}, &rig);
  REQUIRE(rig.events.size() == 1);
  CHECK(rig.events[0].num_tokens == 4);
  const TokenId drawn = rig.Of(id).tokens.at(0);
  REQUIRE(rig.Step());
  CHECK(rig.plan.token_ids == std::vector<TokenId>{drawn, 7, 8, 9});
  CHECK(rig.plan.positions == std::vector<engine::Position>{5, 6, 7, 8});
  REQUIRE(rig.plan.samples.size() == 1);
  CHECK(rig.plan.samples[0].row == 3);
  CHECK(rig.plan.samples[0].position == 9);
  rig.RunAll();
  // Drawn and forced tokens are the ten that were asked for.
  CHECK(rig.Of(id).tokens.size() == 10);
  CHECK(rig.Of(id).reason == FinishReason::kLength);
  CHECK(rig.scheduler.stats().forced_tokens == 3);
  CHECK(rig.scheduler.stats().generated_tokens == 10);
}

TEST_CASE("An answer ends within forced tokens, at its limit or at a stop token",
          "[scheduler][unit]") {
  Rig rig(Small());
  const RequestId id = rig.Add(MakeRequest(5, 3));
  StepWithForced({7, 8, 9}, &rig);
  CHECK(rig.Of(id).finished);
  CHECK(rig.Of(id).reason == FinishReason::kLength);
  CHECK(rig.events[0].num_tokens == 3);

  GenerationRequest request = MakeRequest(5, 10);
  request.stop_tokens = {8};
  const RequestId stopped = rig.Add(request);
  StepWithForced({7, 8, 9}, &rig);
  CHECK(rig.Of(stopped).reason == FinishReason::kStop);
  CHECK(rig.events[0].num_tokens == 3);
  CHECK(rig.scheduler.stats().pages_used == 0);
}

// The result of an executor for a plan whose samples draw token 1.
engine::StepResult PlainDraws(const engine::StepPlan& plan) {
  engine::StepResult result;
  result.step = plan.step;
  for (const engine::SampleRow& sample : plan.samples) {
    result.gains.push_back(
        {sample.id, static_cast<int32_t>(result.tokens.size()), 1, sample.num_rows});
    result.tokens.emplace_back().token = 1;
  }
  return result;
}

TEST_CASE("A row that is not kept leaves no trace, and runs again", "[scheduler][unit]") {
  Scheduler scheduler(Small());
  GenerationRequest request = MakeRequest(8, 10);
  request.id = RequestId{1};
  scheduler.Add(request, 0);
  engine::StepPlan plan;
  std::vector<SequenceEvent> events;
  scheduler.Plan(1, &plan);
  scheduler.Commit(PlainDraws(plan), 1, &events);
  // The decode's row is the first of the third page; the step draws nothing and drops the row.
  scheduler.Plan(2, &plan);
  REQUIRE(plan.token_ids == std::vector<TokenId>{1});
  REQUIRE(plan.positions == std::vector<engine::Position>{8});
  CHECK(scheduler.stats().pages_used == 3);
  engine::StepResult dropped = PlainDraws(plan);
  dropped.gains[0].num_tokens = 0;
  dropped.gains[0].rows_kept = 0;
  events.clear();
  scheduler.Commit(dropped, 2, &events);
  CHECK(events.empty());
  CHECK(scheduler.stats().pages_used == 2);
  CHECK(scheduler.CheckIntegrity().ok());
  scheduler.Plan(3, &plan);
  CHECK(plan.token_ids == std::vector<TokenId>{1});
  CHECK(plan.positions == std::vector<engine::Position>{8});
  CHECK(plan.samples[0].position == 9);
  CHECK(plan.sequences[0].kind == engine::SliceKind::kDecode);
  CHECK(scheduler.stats().generated_tokens == 1);
}

TEST_CASE("What a slice holds is a prompt's tokens, or the token that was drawn last",
          "[scheduler][unit]") {
  Rig rig(Small());
  rig.Add(MakeRequest(5, 10));
  REQUIRE(rig.Step());
  CHECK(rig.plan.sequences[0].kind == engine::SliceKind::kPrompt);
  CHECK(rig.plan.sequences[0].num_masks == 0);
  StepWithForced({7, 8}, &rig);
  CHECK(rig.plan.sequences[0].kind == engine::SliceKind::kDecode);
  REQUIRE(rig.Step());
  CHECK(rig.plan.sequences[0].num_tokens == 3);  // drawn, and two that were forced
  CHECK(rig.plan.sequences[0].kind == engine::SliceKind::kPrompt);
}

// Sends `plan` to another process and back, as far as that is possible within this one: every array
// through its bytes, except `begun`, which is copied.
engine::StepPlan ThroughBytes(const engine::StepPlan& plan) {
  std::vector<std::vector<std::byte>> sent;
  const auto send = [&sent](const auto& array) {
    using Element = typename std::decay_t<decltype(array)>::value_type;
    sent.emplace_back();
    if constexpr (std::is_trivially_copyable_v<Element>) {
      const auto bytes = std::as_bytes(std::span(array));
      sent.back().assign(bytes.begin(), bytes.end());
    } else {
      static_assert(std::is_same_v<Element, engine::SequenceBegin>);
    }
  };
  engine::StepPlan::ForEachArray(plan, send);
  engine::StepPlan received;
  received.step = plan.step;
  received.begun = plan.begun;
  received.more_groups = plan.more_groups;
  size_t next = 0;
  engine::StepPlan::ForEachArray(received, [&](auto& array) {
    using Element = typename std::decay_t<decltype(array)>::value_type;
    const std::vector<std::byte>& bytes = sent[next++];
    if constexpr (std::is_trivially_copyable_v<Element>) {
      array.resize(bytes.size() / sizeof(Element));
      std::copy(bytes.begin(), bytes.end(), std::as_writable_bytes(std::span(array)).begin());
    }
  });
  return received;
}

TEST_CASE("A plan that went through bytes is executed like the plan itself", "[scheduler][unit]") {
  SchedulerOptions options = Small();
  options.num_pages = 12;  // so that pages are given back, copied and shared
  Rig rig(options);
  GenerationRequest branches = MakeRequest(7, 12, 1);
  branches.num_branches = 3;
  rig.Add(branches);
  rig.Add(MakeRequest(6, 9, 2));
  for (int64_t now = 1; !rig.scheduler.idle(); ++now) {
    rig.scheduler.Plan(now, &rig.plan);
    REQUIRE(rig.executor.Submit(ThroughBytes(rig.plan), rig.scheduler.locals()).ok());
    REQUIRE(rig.executor.Wait(&rig.result).ok());
    rig.events.clear();
    rig.scheduler.Commit(rig.result, now, &rig.events);
    rig.Book();
  }
  for (int32_t b = 0; b < 3; ++b) CHECK(rig.Of(RequestId{1}, b).tokens == Alone(branches, b, 12));
  CHECK(rig.Of(RequestId{2}).tokens == Alone(MakeRequest(6, 9, 2), 0, 9));
}

TEST_CASE("Waiting requests start in the order they came in", "[scheduler][unit]") {
  SchedulerOptions options = Small();
  options.max_step_seqs = 2;
  Rig rig(options);
  std::vector<RequestId> ids;
  for (int i = 0; i < 6; ++i) ids.push_back(rig.Add(MakeRequest(3, 2, i)));
  std::vector<RequestId> finished;
  while (rig.Step()) {
    for (const SequenceEvent& event : rig.events) {
      if (event.finished) finished.push_back(event.request);
    }
  }
  CHECK(finished == ids);
}

TEST_CASE("A request that waits for longer than the limit ends with an error, a running one not",
          "[scheduler][unit]") {
  SchedulerOptions options = Small();
  options.max_step_seqs = 1;
  options.max_queue_us = 10;
  Rig rig(options);
  RequestId first = rig.Add(MakeRequest(3, 30, 1));  // at 0; runs at once
  REQUIRE(rig.Step());
  rig.now_us = 5;
  RequestId second = rig.Add(MakeRequest(4, 2, 2));
  rig.now_us = 6;
  RequestId third = rig.Add(MakeRequest(5, 2, 3));
  CHECK(rig.scheduler.stats().waiting_tokens == 9);
  auto expire = [&](int64_t now_us) {
    rig.events.clear();
    rig.scheduler.Expire(now_us, &rig.events);
    rig.Book();
  };
  expire(14);
  CHECK(rig.events.empty());
  expire(15);
  CHECK(rig.Of(second).finished);
  CHECK(rig.Of(second).reason == FinishReason::kError);
  CHECK_FALSE(rig.Of(third).finished);
  CHECK(rig.scheduler.stats().waiting_tokens == 5);
  expire(1000);
  CHECK(rig.Of(third).finished);
  CHECK_FALSE(rig.Of(first).finished);
  CHECK(rig.scheduler.stats().waiting_tokens == 0);
  rig.RunAll();
  CHECK(rig.Of(first).tokens.size() == 30);
}

TEST_CASE("With a sliding window a sequence holds a window and a step, however long it grows",
          "[scheduler][unit]") {
  SchedulerOptions options = Small();  // a pool of 64 positions
  options.max_context = 500;
  options.max_step_tokens = 16;
  options.windows = {20};
  Rig rig(options);
  GenerationRequest request = MakeRequest(200, 250);
  CHECK(Scheduler::Validate(request, options).ok());
  RequestId id = rig.Add(request);
  while (rig.Step()) {
    REQUIRE(rig.scheduler.CheckIntegrity().ok());
    // A window and a step, and a page for where each begins and ends.
    REQUIRE(rig.scheduler.stats().pages_used <= (20 + 16) / 4 + 2);
  }
  CHECK(rig.Of(id).tokens == Alone(request, 0, 250));
  CHECK(rig.scheduler.stats().pages_used == 0);
}

TEST_CASE("A hundred requests with one prefix of 1,000 tokens compute it once",
          "[scheduler][unit]") {
  Rig rig({.num_pages = 1000,
           .page_tokens = 16,
           .max_context = 2048,
           .max_step_tokens = 512,
           .max_step_seqs = 128});
  constexpr int32_t kPrefix = 1000, kOwn = 24, kRequests = 100;
  for (int32_t i = 0; i < kRequests; ++i) {
    GenerationRequest request = MakeRequest(kPrefix, 8);
    for (int32_t t = 0; t < kOwn; ++t) request.prompt.push_back((i * 37 + t * 11) % kVocab);
    rig.Add(request);
  }
  rig.RunAll();
  // Issue: within 5 % of the unique tokens.
  const int64_t unique = kPrefix + kRequests * kOwn;
  CHECK(rig.scheduler.stats().prompt_tokens >= unique);
  CHECK(rig.scheduler.stats().prompt_tokens <= unique + unique / 20);
}

TEST_CASE("The time in the queue is told once, with the first event", "[scheduler][unit]") {
  SchedulerOptions options = Small();
  options.max_step_seqs = 1;
  Rig rig(options);
  rig.Add(MakeRequest(3, 4, 1));  // runs in steps 1 to 4
  RequestId id = rig.Add(MakeRequest(3, 2, 2));
  std::vector<int64_t> queued;
  while (rig.Step()) {
    for (const SequenceEvent& event : rig.events) {
      if (event.request == id) queued.push_back(event.queued_us);
    }
  }
  CHECK(queued == std::vector<int64_t>{5, -1});
}

}  // namespace
}  // namespace heddle::scheduler
