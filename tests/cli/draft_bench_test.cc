#include "server/cli/draft_bench.h"

#include <chrono>
#include <set>

#include "catch2/catch.hpp"
#include "engine/executor.h"

namespace heddle::server {
namespace {

using Tokens = std::vector<engine::TokenId>;

// Takes 200 us for one row and 10 us for each further one, and checks the plans.
class TimedExecutor final : public engine::Executor {
 public:
  TimedExecutor() {
    limits_.num_pages = 64;
    limits_.page_tokens = 16;
    limits_.max_context = 256;
    limits_.max_batch_tokens = 64;
    limits_.max_batch_seqs = 4;
    limits_.vocab = 1000;
    limits_.max_draft_tokens = 8;
  }
  const engine::ExecutorLimits& limits() const override { return limits_; }

  absl::Status Submit(const engine::StepPlan& plan, const engine::StepLocals&) override {
    const auto end = std::chrono::steady_clock::now() +
                     std::chrono::microseconds(190 + 10 * plan.token_ids.size());
    std::set<std::pair<int32_t, int32_t>> slots;
    for (const engine::KvSlot& slot : plan.kv_slots) {
      CHECK(slots.insert({engine::Index(slot.page), slot.offset}).second);  // nobody's twice
    }
    for (size_t i = 0; i < plan.sequences.size(); ++i) {
      const engine::SequenceSlice& slice = plan.sequences[i];
      const engine::SampleRow& sample = plan.samples.at(i);
      CHECK(sample.row == slice.token_begin);
      CHECK(sample.num_rows == slice.num_tokens);
      CHECK(slice.num_tokens <= 1 + limits_.max_draft_tokens);
      // The first token of the sample stands behind the slice's first row.
      CHECK(sample.position == plan.positions.at(static_cast<size_t>(slice.token_begin)) + 1);
    }
    most_rows_ = std::max(most_rows_, plan.token_ids.size());
    while (std::chrono::steady_clock::now() < end) {
    }
    return absl::OkStatus();
  }
  absl::Status Wait(engine::StepResult* result) override {
    result->Clear();
    return absl::OkStatus();
  }
  size_t most_rows() const { return most_rows_; }

 private:
  engine::ExecutorLimits limits_;
  size_t most_rows_ = 0;
};

absl::StatusOr<DraftTiming> ReplayOnce(engine::Executor& executor, const DraftBenchShape& shape,
                                       const SpeculationOptions& way) {
  const absl::StatusOr<std::vector<DraftTiming>> timings = ReplayText(executor, shape, {&way, 1});
  if (!timings.ok()) return timings.status();
  return timings->at(0);
}

SpeculationOptions Ngrams() {
  SpeculationOptions options;
  options.on = true;
  options.drafters.ngram = true;
  return options;
}

TEST_CASE("Without drafts a replay takes one step per token", "[unit]") {
  TimedExecutor executor;
  Tokens text;
  for (int i = 0; i < 100; ++i) text.push_back(i % 10);
  const auto timing = ReplayOnce(executor, {.batch = 2, .text = text, .prompt_tokens = 40}, {});
  REQUIRE(timing.ok());
  CHECK(timing->steps == 60);
  CHECK(timing->drafts.drafts == 0);
  CHECK(executor.most_rows() == 2);
}

TEST_CASE("A text that repeats its prompt takes few steps with drafts", "[unit]") {
  TimedExecutor executor;
  Tokens text;
  for (int i = 0; i < 240; ++i) text.push_back(i % 10);
  const auto timing =
      ReplayOnce(executor, {.batch = 1, .text = text, .prompt_tokens = 40}, Ngrams());
  REQUIRE(timing.ok());
  // At best 9 tokens per step: 200 tokens in 23 steps. Every token is one step's own or accepted.
  CHECK(timing->steps >= 23);
  CHECK(timing->steps < 100);
  CHECK(timing->steps + timing->drafts.accepted_tokens == 200);
}

TEST_CASE("A text without repetitions is replayed step by step", "[unit]") {
  TimedExecutor executor;
  Tokens text;
  for (int i = 0; i < 100; ++i) text.push_back(i);
  const auto timing =
      ReplayOnce(executor, {.batch = 1, .text = text, .prompt_tokens = 40}, Ngrams());
  REQUIRE(timing.ok());
  CHECK(timing->steps == 60);
}

TEST_CASE("With drafts and without by turns, each takes the steps that it takes alone", "[unit]") {
  TimedExecutor executor;
  Tokens text;
  for (int i = 0; i < 120; ++i) text.push_back(i % 10);
  const SpeculationOptions ways[] = {{}, Ngrams()};
  const auto timings = ReplayText(executor, {.batch = 2, .text = text, .prompt_tokens = 40}, ways);
  REQUIRE(timings.ok());
  REQUIRE(timings->size() == 2);
  CHECK(timings->at(0).steps == 80);
  CHECK(timings->at(0).drafts.drafts == 0);
  CHECK(timings->at(1).steps < 80);
  CHECK(timings->at(1).drafts.accepted_tokens > 0);
  CHECK(timings->at(0).seconds > 80 * 200e-6);
}

TEST_CASE("Texts that do not fit are refused", "[unit]") {
  TimedExecutor executor;
  const Tokens text(257, 1);
  CHECK_FALSE(ReplayOnce(executor, {.text = text, .prompt_tokens = 40}, {}).ok());
  const Tokens fitting(200, 1);
  CHECK_FALSE(ReplayOnce(executor, {.batch = 6, .text = fitting, .prompt_tokens = 40}, {}).ok());
  CHECK_FALSE(ReplayOnce(executor, {.text = fitting, .prompt_tokens = 0}, {}).ok());
  CHECK_FALSE(ReplayOnce(executor, {.text = fitting, .prompt_tokens = 200}, {}).ok());
}

TEST_CASE("Words with their spaces, signs and runs of spaces are tokens", "[unit]") {
  const auto count = [](std::string_view text) { return WordsAsTokens(text, 1000).size(); };
  CHECK(count("") == 0);
  CHECK(count("one two") == 2);      // "one", " two"
  CHECK(count("if (x1) {\n") == 8);  // "if", " ", "(", "x1", ")", " ", "{", "\n"
  CHECK(WordsAsTokens("a b a b", 1 << 30)[1] == WordsAsTokens("a b a b", 1 << 30)[3]);
  for (const engine::TokenId token : WordsAsTokens("some words, and more", 7)) {
    CHECK(token >= 0);
    CHECK(token < 7);
  }
}

}  // namespace
}  // namespace heddle::server
