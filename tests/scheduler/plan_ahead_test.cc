// Steps that are planned while the previous one is in flight: what they hold, when they wait for
// its tokens after all, and what happens to rows that turn out to be useless.
#include "catch2/catch.hpp"
#include "tests/scheduler/rig.h"

namespace heddle::scheduler {
namespace {

SchedulerOptions AheadOptions() {
  return {.num_pages = 32,
          .page_tokens = 4,
          .max_context = 64,
          .max_step_tokens = 32,
          .max_step_seqs = 4};
}

// Plans ahead whenever the scheduler can.
Rig AheadRig(const SchedulerOptions& options) { return Rig(options, /*max_in_flight=*/2); }

// One step in flight whose samples are drawn and not committed.
engine::StepPlan PlanOne(Rig& rig) {
  rig.scheduler.Plan(++rig.now_us, &rig.plan);
  return rig.plan;
}

TEST_CASE("A step planned ahead runs the tokens that the one before draws, by sample",
          "[scheduler][unit]") {
  Rig rig = AheadRig(AheadOptions());
  rig.Add(MakeRequest(6, 10, 0));
  rig.Add(MakeRequest(5, 10, 1));
  const engine::StepPlan first = PlanOne(rig);
  REQUIRE(first.samples.size() == 2);
  engine::StepPlan next;
  REQUIRE(rig.scheduler.PlanAhead(rig.now_us, &next));
  CHECK(next.step == first.step + 1);
  CHECK(next.token_ids == std::vector<TokenId>{engine::kNoToken, engine::kNoToken});
  REQUIRE(next.undrawn.size() == 2);
  for (int32_t i = 0; i < 2; ++i) {
    CHECK(next.undrawn[i].row == i);
    CHECK(next.undrawn[i].sample == i);
    CHECK(next.undrawn[i].step == first.step);
  }
  CHECK(next.positions == std::vector<engine::Position>{6, 5});
  REQUIRE(next.samples.size() == 2);
  CHECK(next.samples[0].position == 7);
  CHECK(next.samples[1].position == 6);
  CHECK(next.sequences[0].id == first.sequences[0].id);
  CHECK(next.sequences[0].context_tokens == 7);
  CHECK(rig.scheduler.CheckIntegrity().ok());
  engine::StepPlan third;
  CHECK_FALSE(rig.scheduler.PlanAhead(rig.now_us, &third));  // as many as the executor takes
}

TEST_CASE("Steps planned ahead draw what steps planned one by one draw", "[scheduler][unit]") {
  Rig rig = AheadRig(AheadOptions());
  rig.ahead = [] { return true; };
  GenerationRequest branches = MakeRequest(9, 12, 3);
  branches.num_branches = 3;
  const RequestId a = rig.Add(branches);
  const RequestId b = rig.Add(MakeRequest(7, 20, 4));
  const RequestId c = rig.Add(MakeRequest(30, 5, 5));  // waits: there are four places
  rig.RunAll();
  for (int32_t i = 0; i < 3; ++i) CHECK(rig.Of(a, i).tokens == Alone(branches, i, 12));
  CHECK(rig.Of(b).tokens == Alone(MakeRequest(7, 20, 4), 0, 20));
  CHECK(rig.Of(c).tokens == Alone(MakeRequest(30, 5, 5), 0, 5));
  CHECK(rig.executor.num_ahead() > 15);
  CHECK(rig.executor.num_live() == 0);
  CHECK(rig.scheduler.stats().pages_used == 0);
}

TEST_CASE("However many steps may be in flight, a sequence runs one ahead of its tokens at most",
          "[scheduler][unit]") {
  for (const int32_t depth : {1, 2, 3, 5}) {
    INFO("depth " << depth);
    SchedulerOptions options = AheadOptions();
    options.max_step_tokens = 6;  // so that the long prompt has rows for many steps
    Rig rig(options, depth);
    rig.ahead = [] { return true; };
    GenerationRequest branches = MakeRequest(5, 12, 3);
    branches.num_branches = 2;
    const RequestId a = rig.Add(branches);
    const RequestId b = rig.Add(MakeRequest(50, 9, 4));
    while (rig.Step()) {
      for (const engine::UndrawnRow& undrawn : rig.plan.undrawn) {
        CHECK(undrawn.step < rig.plan.step);
        CHECK(undrawn.step + static_cast<uint64_t>(depth) > rig.plan.step);
      }
    }
    for (int32_t i = 0; i < 2; ++i) CHECK(rig.Of(a, i).tokens == Alone(branches, i, 12));
    CHECK(rig.Of(b).tokens == Alone(MakeRequest(50, 9, 4), 0, 9));
    CHECK((rig.executor.num_ahead() > 0) == (depth > 1));
    CHECK(rig.executor.num_live() == 0);
    CHECK(rig.scheduler.stats().pages_used == 0);
  }
}

TEST_CASE("A sequence that stops has one row more, which nobody hears of", "[scheduler][unit]") {
  Rig rig = AheadRig(AheadOptions());
  GenerationRequest request = MakeRequest(6, 20, 2);
  const std::vector<TokenId> alone = Alone(request, 0, 4);
  request.stop_tokens = {alone[3]};
  rig.ahead = [] { return true; };
  const RequestId id = rig.Add(request);
  for (int i = 0; i < 4; ++i) REQUIRE(rig.Step());
  CHECK(rig.Of(id).tokens == alone);
  CHECK(rig.Of(id).finished);
  CHECK(rig.Of(id).reason == FinishReason::kStop);
  CHECK(rig.scheduler.stats().pages_used == 0);  // at once
  CHECK(rig.executor.num_rows() == 6 + 4);       // three of use
  CHECK(rig.executor.num_live() == 1);           // a plan in flight names it
  rig.RunAll();
  CHECK(rig.executor.num_live() == 0);
  CHECK(rig.Of(id).tokens == alone);
}

TEST_CASE("The page that a row of no use fills is found by who goes on from there",
          "[scheduler][unit]") {
  Rig rig = AheadRig(AheadOptions());
  GenerationRequest request = MakeRequest(6, 20, 2);
  const std::vector<TokenId> answer = Alone(request, 0, 2);  // the second fills the second page
  request.stop_tokens = {answer[1]};
  rig.ahead = [] { return true; };
  rig.Add(request);
  REQUIRE(rig.Step());
  REQUIRE(rig.Step());
  GenerationRequest next = request;
  next.prompt.insert(next.prompt.end(), answer.begin(), answer.end());
  next.prompt.insert(next.prompt.end(), {1, 2, 3});
  const RequestId id = rig.Add(next);
  rig.RunAll();
  CHECK(rig.Of(id).cached_tokens == 8);
  GenerationRequest alone = next;  // the executor checks what is in the page
  CHECK(rig.Of(id).tokens == Alone(alone, 0, static_cast<int32_t>(rig.Of(id).tokens.size())));
}

TEST_CASE("What its length ends has no row more, and its place is taken", "[scheduler][unit]") {
  SchedulerOptions options = AheadOptions();
  options.max_step_seqs = 1;
  Rig rig = AheadRig(options);
  rig.ahead = [] { return true; };
  rig.Add(MakeRequest(4, 2, 0));
  const RequestId second = rig.Add(MakeRequest(5, 1, 1));
  for (int i = 0; i < 3; ++i) REQUIRE(rig.Step());
  CHECK(rig.Of(second).finished);
  CHECK(rig.executor.num_rows() == 4 + 1 + 5);
}

// The fake executor forces up to three tokens behind some of a constrained sequence's.
GenerationRequest Constrained(int32_t salt) {
  GenerationRequest request = MakeRequest(6, 24, salt);
  request.sampling.presence_penalty = 1;
  return request;
}

TEST_CASE("A sample behind a token that others follow, forced, brings nothing, and these run next",
          "[scheduler][unit]") {
  Rig rig = AheadRig(AheadOptions());
  int32_t salt = 0;  // of a sequence that has something forced behind its second token, not before
  const auto forced_behind = [&](int32_t i) {
    return test::FakeExecutor::Forced(Alone(Constrained(salt), 0, 2)[i], kVocab);
  };
  while (!forced_behind(0).empty() || forced_behind(1).size() != 2) ++salt;
  const RequestId id = rig.Add(Constrained(salt));
  const std::vector<TokenId> alone = Alone(Constrained(salt), 0, 24);
  rig.ahead = [] { return true; };
  for (int i = 0; i < 2; ++i) REQUIRE(rig.Step());
  CHECK(rig.Of(id).tokens == std::vector<TokenId>(alone.begin(), alone.begin() + 4));
  // The step in flight runs the second token, and its sample is dropped; the step behind it runs
  // the forced tokens, and draws.
  REQUIRE(rig.Step());
  REQUIRE(rig.plan.undrawn.size() == 1);
  CHECK(rig.result.gains[0].num_tokens == 0);
  CHECK(rig.result.gains[0].rows_kept == 1);
  CHECK(rig.Of(id).tokens.size() == 4);
  REQUIRE(rig.Step());
  CHECK(rig.plan.token_ids == std::vector<TokenId>{alone[2], alone[3]});
  CHECK(rig.Of(id).tokens[4] == alone[4]);
  rig.RunAll();
  CHECK(rig.Of(id).tokens == alone);
}

TEST_CASE("Plans wait for tokens where grammars keep forcing what follows, and not beside many",
          "[scheduler][unit]") {
  const auto share_ahead = [](int32_t num_others) {
    Rig rig = AheadRig({.num_pages = 200,
                        .page_tokens = 4,
                        .max_context = 64,
                        .max_step_tokens = 200,
                        .max_step_seqs = 16});
    rig.ahead = [] { return true; };
    const RequestId id = rig.Add(Constrained(1));
    for (int32_t i = 0; i < num_others; ++i) rig.Add(MakeRequest(6, 40, 2 + i));
    int32_t steps = 0;
    while (!rig.Of(id).finished && rig.Step()) ++steps;
    CHECK(rig.Of(id).tokens == Alone(Constrained(1), 0, 24));
    return static_cast<double>(rig.executor.num_ahead()) / steps;
  };
  CHECK(share_ahead(0) < 0.5);
  CHECK(share_ahead(11) == 1.0);
}

TEST_CASE("No step is planned behind one whose hidden states are to be read", "[scheduler][unit]") {
  Rig rig = AheadRig(AheadOptions());
  rig.Add(MakeRequest(6, 20, 0));
  GenerationRequest embedding = MakeRequest(40, 0, 1);  // in two chunks
  embedding.pooling = engine::Pooling::kLast;
  rig.Add(embedding);
  engine::StepPlan next;
  PlanOne(rig);
  CHECK(rig.plan.pools.empty());
  CHECK(rig.scheduler.PlanAhead(rig.now_us, &next));
  CHECK(next.pools.size() == 1);
  Rig other = AheadRig(AheadOptions());
  embedding.pooling = engine::Pooling::kMean;
  other.Add(embedding);
  PlanOne(other);
  CHECK(other.plan.pools.size() == 1);
  CHECK_FALSE(other.scheduler.PlanAhead(other.now_us, &next));
}

TEST_CASE("Nobody is preempted before his last token is known", "[scheduler][unit]") {
  SchedulerOptions options = AheadOptions();
  options.num_pages = 6;
  Rig rig = AheadRig(options);
  rig.ahead = [] { return true; };
  const RequestId a = rig.Add(MakeRequest(6, 14, 0));
  const RequestId b = rig.Add(MakeRequest(6, 14, 1));
  rig.RunAll();
  CHECK(rig.scheduler.stats().preemptions > 0);
  CHECK(rig.executor.num_ahead() > 0);
  CHECK(rig.Of(a).tokens == Alone(MakeRequest(6, 14, 0), 0, 14));
  CHECK(rig.Of(b).tokens == Alone(MakeRequest(6, 14, 1), 0, 14));
}

TEST_CASE("Who is more urgent gets a place after one more step, however many are planned ahead",
          "[scheduler][unit]") {
  SchedulerOptions options = AheadOptions();
  options.max_step_seqs = 1;
  options.policy = PolicyKind::kPriority;
  Rig rig = AheadRig(options);
  rig.ahead = [] { return true; };
  GenerationRequest patient = MakeRequest(4, 30, 0);
  patient.priority = 5;
  const RequestId first = rig.Add(patient);
  REQUIRE(rig.Step());
  const RequestId urgent = rig.Add(MakeRequest(4, 1, 1));
  // The next is planned already. The one behind it finds that somebody must give way, and the plan
  // after that, which knows all tokens, makes him.
  for (int i = 0; i < 3; ++i) REQUIRE(rig.Step());
  CHECK(rig.Of(urgent).finished);
  rig.RunAll();
  CHECK(rig.Of(first).tokens == Alone(patient, 0, 30));
}

TEST_CASE("A sequence cancelled while it is planned ahead ends with what it has",
          "[scheduler][unit]") {
  Rig rig = AheadRig(AheadOptions());
  rig.ahead = [] { return true; };
  const RequestId gone = rig.Add(MakeRequest(6, 20, 0));
  const RequestId stays = rig.Add(MakeRequest(6, 8, 1));
  REQUIRE(rig.Step());
  REQUIRE(rig.Step());
  rig.Cancel(gone);
  CHECK(rig.Of(gone).tokens == Alone(MakeRequest(6, 20, 0), 0, 2));
  CHECK(rig.scheduler.CheckIntegrity().ok());
  rig.RunAll();
  CHECK(rig.Of(gone).tokens.size() == 2);
  CHECK(rig.Of(stays).tokens == Alone(MakeRequest(6, 8, 1), 0, 8));
  CHECK(rig.executor.num_live() == 0);
}

}  // namespace
}  // namespace heddle::scheduler
