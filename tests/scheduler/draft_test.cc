// Drafts in plans: which sequences take one, what rows and pages they get, and what stays of them.
#include "catch2/catch.hpp"
#include "tests/scheduler/rig.h"

namespace heddle::scheduler {
namespace {

SchedulerOptions DraftOptions() {
  return {.num_pages = 64,
          .page_tokens = 4,
          .max_context = 100,
          .max_step_tokens = 16,
          .max_step_seqs = 8,
          .max_draft_tokens = 8,
          .prefix_cache = false};
}

// The next `count` tokens of a candidate's answer.
std::vector<TokenId> Right(const DraftCandidate& candidate, int32_t count) {
  const auto known = static_cast<int32_t>(candidate.generated.size());
  const std::vector<TokenId> answer = Alone(*candidate.request, candidate.branch, known + count);
  return {answer.begin() + known, answer.end()};
}

TEST_CASE("A right draft brings its tokens and one more in a step", "[scheduler][unit]") {
  Rig rig(DraftOptions());
  const GenerationRequest request = MakeRequest(5, 20);
  const RequestId id = rig.Add(request);
  REQUIRE(rig.Step());  // the prompt
  rig.draft = [](const DraftCandidate& candidate) { return Right(candidate, 6); };
  REQUIRE(rig.Step());
  CHECK(rig.plan.sequences[0].kind == engine::SliceKind::kDraft);
  CHECK(rig.plan.sequences[0].num_tokens == 7);
  CHECK(rig.Of(id).tokens.size() == 8);
  CHECK(rig.events[0].num_drafted == 6);
  CHECK(rig.events[0].num_accepted == 6);
  rig.RunAll();
  CHECK(rig.Of(id).tokens == Alone(request, 0, 20));
}

// 5 tokens of the prompt, the drawn one and 6 proposed ones take 3 pages; what stays takes 2.
TEST_CASE("The pages of a wrong draft go back with its result", "[scheduler][unit]") {
  Rig rig(DraftOptions());
  rig.Add(MakeRequest(5, 20));
  REQUIRE(rig.Step());
  CHECK(rig.scheduler.stats().pages_used == 2);
  int32_t used_in_flight = 0;
  rig.between = [&] { used_in_flight = rig.scheduler.stats().pages_used; };
  rig.draft = [](const DraftCandidate& candidate) {
    std::vector<TokenId> draft = Right(candidate, 6);
    draft[1] = (draft[1] + 1) % kVocab;
    return draft;
  };
  REQUIRE(rig.Step());
  CHECK(used_in_flight == 3);
  CHECK(rig.scheduler.stats().pages_used == 2);
  CHECK(rig.events[0].num_tokens == 2);
  CHECK(rig.events[0].num_accepted == 1);
  CHECK(rig.scheduler.CheckIntegrity().ok());
}

TEST_CASE("A draft is no longer than the rest of the answer is of use for", "[scheduler][unit]") {
  Rig rig(DraftOptions());
  const RequestId id = rig.Add(MakeRequest(5, 4));
  rig.draft = [](const DraftCandidate& candidate) {
    CHECK(candidate.max_tokens == 2);  // one token is there, and one follows the draft
    return Right(candidate, 8);
  };
  REQUIRE(rig.Step());
  REQUIRE(rig.Step());
  CHECK(rig.plan.token_ids.size() == 3);
  CHECK(rig.Of(id).finished);
  CHECK(rig.Of(id).tokens.size() == 4);
}

TEST_CASE("An answer that stops within a draft ends there", "[scheduler][unit]") {
  Rig rig(DraftOptions());
  GenerationRequest request = MakeRequest(5, 20);
  const std::vector<TokenId> answer = Alone(request, 0, 4);
  request.stop_tokens = {answer[3]};
  const RequestId id = rig.Add(request);
  rig.draft = [](const DraftCandidate& candidate) { return Right(candidate, 8); };
  REQUIRE(rig.Step());
  REQUIRE(rig.Step());
  CHECK(rig.Of(id).tokens == answer);
  CHECK(rig.Of(id).reason == FinishReason::kStop);
  CHECK(rig.events[0].num_accepted == 3);
  rig.RunAll();
  CHECK(rig.scheduler.stats().pages_used == 0);
}

// 16 rows: two decodes, and the whole chunk of 12 rows that a prompt wants, leave 2.
TEST_CASE("A draft gets the rows that decodes and prompts leave", "[scheduler][unit]") {
  Rig rig(DraftOptions());
  rig.Add(MakeRequest(4, 20, 1));
  rig.Add(MakeRequest(4, 20, 2));
  REQUIRE(rig.Step());
  rig.Add(MakeRequest(12, 20, 3));
  rig.draft = [](const DraftCandidate& candidate) { return Right(candidate, 8); };
  REQUIRE(rig.Step());
  int32_t drafted = 0, prompts = 0;
  for (const engine::SequenceSlice& slice : rig.plan.sequences) {
    if (slice.kind == engine::SliceKind::kPrompt) prompts += slice.num_tokens;
    if (slice.kind == engine::SliceKind::kDraft) drafted += slice.num_tokens - 1;
  }
  CHECK(prompts == 12);
  CHECK(drafted == 2);
}

// Two prompts of 7 tokens fill 2 pages of 4 each, with one position left for the drawn token.
TEST_CASE("Nobody is preempted for a draft", "[scheduler][unit]") {
  SchedulerOptions options = DraftOptions();
  options.num_pages = 5;
  options.max_context = 20;
  Rig rig(options);
  rig.Add(MakeRequest(7, 8, 1));
  rig.Add(MakeRequest(7, 8, 2));
  REQUIRE(rig.Step());
  REQUIRE(rig.scheduler.stats().pages_used == 4);
  rig.draft = [](const DraftCandidate& candidate) { return Right(candidate, 8); };
  REQUIRE(rig.Step());
  // The first draft fills the fifth page, the second has none.
  CHECK(rig.scheduler.stats().drafted_tokens == 4);
  CHECK(rig.scheduler.stats().preemptions == 0);
}

TEST_CASE("Paused sequences and those that still read a prompt take no draft",
          "[scheduler][unit]") {
  Rig rig(DraftOptions());
  const RequestId id = rig.Add(MakeRequest(20, 20));
  std::vector<DraftCandidate> candidates;
  REQUIRE(rig.Step());
  rig.scheduler.ListDraftable(&candidates);
  CHECK(candidates.empty());
  REQUIRE(rig.Step());
  rig.scheduler.ListDraftable(&candidates);
  REQUIRE(candidates.size() == 1);
  const engine::SequenceId sequence = candidates[0].id;
  rig.scheduler.Pause(id);
  rig.scheduler.ListDraftable(&candidates);
  CHECK(candidates.empty());
  rig.scheduler.Offer(sequence, std::vector<TokenId>{1, 2});
  rig.scheduler.Resume(id, 10);
  REQUIRE(rig.Step());
  CHECK(rig.plan.token_ids.size() == 1);
}

TEST_CASE("An adapter that nobody uses is not evicted for a draft", "[scheduler][unit]") {
  SchedulerOptions options = DraftOptions();
  options.num_pages = 6;
  options.max_context = 20;
  options.adapter_slots = 8;
  Rig rig(options);
  GenerationRequest adapted = MakeRequest(4, 1, 1);
  SetAdapter(&adapted, 1, 3);
  rig.Add(adapted);
  rig.RunAll();                    // its adapter's 3 pages stay
  rig.Add(MakeRequest(9, 10, 2));  // 3 pages
  REQUIRE(rig.Step());
  rig.draft = [](const DraftCandidate& candidate) { return Right(candidate, 8); };
  REQUIRE(rig.Step());
  CHECK(rig.plan.token_ids.size() == 3);  // positions 9 to 11 of the third page
  CHECK(rig.scheduler.stats().adapter_pages_evicted == 0);
}

}  // namespace
}  // namespace heddle::scheduler
