// The engine loop with a drafter: the answers are those without, and the drafter is told exactly
// what became of each sequence.
#include <algorithm>
#include <map>
#include <string>

#include "catch2/catch.hpp"
#include "tests/server/loop/rig.h"

namespace heddle::server {
namespace {

// Calls to a drafter, over all sequences; written by the loop's thread, read when it is idle.
struct Told {
  int64_t begun = 0, ended = 0, finished = 0;
  int64_t unseen_at_end = 0;  // tokens of answers that were expected, and are whole
  int64_t proposed = 0, verified = 0, accepted = 0;
  int64_t partly_shown = 0;  // times that more tokens came before a question about what came
  std::string broken;        // the first rule that was broken
};

// Proposes the predicted answer, with every fifth token or all of them wrong, and checks the order
// of calls.
class TellingDrafter final : public engine::Drafter {
 public:
  TellingDrafter(std::shared_ptr<Told> told, int wrong_every)
      : told_(std::move(told)), wrong_every_(static_cast<size_t>(wrong_every)) {}

  void Begin(engine::SequenceId id, const engine::DraftScope&, std::span<const TokenId> prompt,
             std::span<const TokenId> prediction) override {
    ++told_->begun;
    if (prompt.empty()) Broken("no prompt");
    const bool is_new = live_.emplace(id, Live{{prediction.begin(), prediction.end()}}).second;
    if (!is_new) Broken("begun twice");
  }
  void Append(engine::SequenceId id, std::span<const TokenId> tokens) override {
    Live& live = Of(id);
    told_->partly_shown += live.is_unasked ? 1 : 0;
    live.is_unasked = true;
    for (TokenId token : tokens) {
      const auto at = static_cast<size_t>(live.known++);
      if (at < live.answer.size() && live.answer[at] != token) Broken("a token that is not next");
    }
  }
  void Propose(engine::SequenceId id, int32_t max_tokens, engine::DraftTree* tree) override {
    Live& live = Of(id);
    live.is_unasked = false;
    tree->Clear();
    for (int32_t i = 0; i < max_tokens; ++i) {
      const auto at = static_cast<size_t>(live.known + i);
      if (at >= live.answer.size()) break;
      tree->Add(
          at % wrong_every_ == wrong_every_ - 1 ? (live.answer[at] + 1) % kVocab : live.answer[at],
          i - 1, 0.5f);
    }
    live.proposed = tree->size();
    told_->proposed += tree->size();
  }
  void Verified(engine::SequenceId id, int32_t num_proposed, int32_t num_accepted) override {
    if (num_proposed < 1 || num_proposed > Of(id).proposed)
      Broken("verified what was not proposed");
    if (num_accepted < 0 || num_accepted > num_proposed) Broken("accepted what was not verified");
    Of(id).proposed = 0;
    told_->verified += num_proposed;
    told_->accepted += num_accepted;
  }
  void End(engine::SequenceId id, bool finished) override {
    const Live live = Of(id);
    told_->unseen_at_end += finished ? static_cast<int64_t>(live.answer.size()) - live.known : 0;
    if (live_.erase(id) == 0) Broken("ended and not begun");
    ++told_->ended;
    told_->finished += finished ? 1 : 0;
  }

 private:
  struct Live {
    std::vector<TokenId> answer;
    int32_t known = 0;
    int32_t proposed = 0;
    bool is_unasked = false;  // tokens came, and no question about it since
  };
  void Broken(const char* rule) {
    if (told_->broken.empty()) told_->broken = rule;
  }
  Live& Of(engine::SequenceId id) {
    if (!live_.contains(id)) Broken("a sequence that is not live");
    return live_[id];
  }

  std::shared_ptr<Told> told_;
  const size_t wrong_every_;
  std::map<engine::SequenceId, Live> live_;
};

struct DraftingLoop {
  explicit DraftingLoop(int32_t max_in_flight, bool ignores_cost = true, int wrong_every = 5,
                        engine::ExecutorLimits limits = Limits()) {
    limits.max_draft_tokens = 6;
    auto fake = std::make_unique<test::FakeExecutor>(limits, max_in_flight);
    executor = fake.get();
    auto speculation = std::make_unique<Speculation>(
        std::make_unique<TellingDrafter>(told, wrong_every),
        Speculation::Options{.max_tokens = 5, .vocab = kVocab, .ignores_cost = ignores_cost});
    loop =
        std::make_unique<EngineLoop>(std::move(fake), EngineLoopOptions{}, std::move(speculation));
  }
  std::shared_ptr<Told> told = std::make_shared<Told>();
  test::FakeExecutor* executor;
  std::unique_ptr<EngineLoop> loop;
};

TEST_CASE("With a drafter the answers are the same, and it is told what became of its drafts",
          "[loop][unit]") {
  const int32_t max_in_flight = GENERATE(1, 2);
  DraftingLoop t(max_in_flight);
  std::vector<GenerationRequest> requests;
  std::vector<std::shared_ptr<Answer>> answers;
  for (int32_t i = 0; i < 12; ++i) {
    GenerationRequest request = MakeRequest(*t.loop, 5 + i, 20 + i);
    request.prediction =
        test::FakeExecutor::Answer(request.prompt, request.sampling.seed, 20 + i, kVocab);
    if (i % 4 == 0) request.stop_tokens = {request.prediction[9]};
    if (i % 4 == 1) request.draft.off = true;
    requests.push_back(request);
    answers.push_back(std::make_shared<Answer>());
    REQUIRE(t.loop->Submit(request, SinkOf(answers.back())).ok());
  }
  for (size_t i = 0; i < answers.size(); ++i) {
    answers[i]->WaitForEnd();
    std::vector<TokenId> want = requests[i].prediction;
    if (i % 4 == 0) want.resize(10);
    CHECK(answers[i]->tokens() == want);
  }
  CHECK(t.loop->Drain(InAnHour()));
  const EngineStats stats = t.loop->Stats();
  CHECK(t.told->broken.empty());
  INFO(t.told->broken);
  CHECK(t.told->begun == t.told->ended);
  CHECK(t.told->begun <= 9);  // three requests want no drafts
  CHECK(t.told->finished == t.told->ended);
  CHECK(t.told->accepted > (max_in_flight == 1 ? 60 : 20));
  CHECK(t.told->verified > t.told->accepted);
  CHECK(stats.drafts.drafted_tokens == t.told->verified);
  CHECK(stats.drafts.accepted_tokens == t.told->accepted);
  CHECK(stats.pages_used == 0);
  CHECK(t.executor->num_live() == 0);
}

// Steps of this executor take next to no time, whatever they do: now drafts pay, now they do not.
TEST_CASE("A drafter that is asked now and then is shown all tokens in order", "[loop][unit]") {
  DraftingLoop t(1, /*ignores_cost=*/false);
  for (int round = 0; round < 3; ++round) {
    std::vector<std::shared_ptr<Answer>> answers;
    for (int32_t i = 0; i < 6; ++i) {
      GenerationRequest request = MakeRequest(*t.loop, 5 + i, 150);
      request.prediction =
          test::FakeExecutor::Answer(request.prompt, request.sampling.seed, 150, kVocab);
      answers.push_back(std::make_shared<Answer>());
      REQUIRE(t.loop->Submit(request, SinkOf(answers.back())).ok());
    }
    for (const auto& answer : answers) answer->WaitForEnd();
  }
  CHECK(t.loop->Drain(InAnHour()));
  INFO(t.told->broken);
  CHECK(t.told->broken.empty());
  CHECK(t.told->begun == t.told->ended);
  CHECK(t.told->unseen_at_end == 0);
}

// Guesses are always wrong, so that speculation pauses for longer and longer, and the drafter is
// shown what came meanwhile in several questions.
TEST_CASE("Behind long pauses a drafter is shown all tokens in order, some with each question",
          "[loop][unit]") {
  engine::ExecutorLimits limits = Limits();
  limits.num_pages = 2048;
  limits.page_tokens = 16;
  limits.max_context = 3100;
  DraftingLoop t(1, /*ignores_cost=*/false, /*wrong_every=*/1, limits);
  std::vector<std::shared_ptr<Answer>> answers;
  for (int32_t i = 0; i < 4; ++i) {
    GenerationRequest request = MakeRequest(*t.loop, 5 + i, 3000);
    request.prediction =
        test::FakeExecutor::Answer(request.prompt, request.sampling.seed, 3000, kVocab);
    answers.push_back(std::make_shared<Answer>());
    REQUIRE(t.loop->Submit(request, SinkOf(answers.back())).ok());
  }
  for (const auto& answer : answers) answer->WaitForEnd();
  CHECK(t.loop->Drain(InAnHour()));
  INFO(t.told->broken);
  CHECK(t.told->broken.empty());
  CHECK(t.told->unseen_at_end == 0);
  CHECK(t.told->accepted == 0);
  CHECK(t.told->partly_shown > 0);
}

TEST_CASE("A drafter hears of the end of a cancelled answer, from which nothing is learnt",
          "[loop][unit]") {
  DraftingLoop t(1);
  GenerationRequest request = MakeRequest(*t.loop, 5, 190);
  request.prediction = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  auto answer = std::make_shared<Answer>();
  // Cancelled from the sink, which runs while the next step does.
  REQUIRE(t.loop
              ->Submit(request,
                       [&t, answer, id = request.id](GenerationEvent&& event) {
                         answer->Take(std::move(event));
                         t.loop->Cancel(id);
                       })
              .ok());
  answer->WaitForEnd();
  CHECK(t.loop->Drain(InAnHour()));
  CHECK(t.told->begun == t.told->ended);
  CHECK(t.told->finished == 0);
}

// A tree is verified along its likeliest path; nodes below the client's limit are left out.
TEST_CASE("The likeliest path of a tree is offered", "[loop][unit]") {
  class TreeDrafter final : public engine::Drafter {
   public:
    void Begin(engine::SequenceId, const engine::DraftScope&, std::span<const TokenId>,
               std::span<const TokenId>) override {}
    void Append(engine::SequenceId, std::span<const TokenId>) override {}
    void Propose(engine::SequenceId, int32_t, engine::DraftTree* tree) override {
      tree->Clear();
      tree->Add(10, -1, 0.3f);
      tree->Add(11, -1, 0.6f);
      tree->Add(20, 0, 0.3f);
      tree->Add(21, 1, 0.2f);
      tree->Add(22, 1, 0.4f);
      tree->Add(30, 4, 0.05f);
    }
    void Verified(engine::SequenceId, int32_t, int32_t) override {}
    void End(engine::SequenceId, bool) override {}
  };
  scheduler::Scheduler scheduler({.num_pages = 64,
                                  .page_tokens = 4,
                                  .max_context = 100,
                                  .max_step_tokens = 32,
                                  .max_step_seqs = 4,
                                  .max_draft_tokens = 8});
  Speculation speculation(std::make_unique<TreeDrafter>(),
                          {.max_tokens = 8, .vocab = kVocab, .ignores_cost = true});
  GenerationRequest request;
  request.id = RequestId{1};
  request.prompt = {1, 2, 3};
  request.max_tokens = 20;
  request.draft.min_survival = 0.1f;
  scheduler.Add(request, 0);
  engine::StepPlan plan;
  scheduler.Plan(1, &plan);
  engine::StepResult result;
  result.step = plan.step;
  result.gains = {{.id = plan.samples[0].id, .num_tokens = 1, .rows_kept = 1}};
  result.tokens = {{.token = 7}};
  std::vector<scheduler::SequenceEvent> events;
  scheduler.Commit(result, 2, &events);
  speculation.Offer(&scheduler);
  scheduler.Plan(3, &plan);
  CHECK(plan.token_ids == std::vector<TokenId>{7, 11, 22});
  CHECK(plan.samples[0].num_rows == 3);
  CHECK(plan.sequences[0].kind == engine::SliceKind::kDraft);
}

}  // namespace
}  // namespace heddle::server
