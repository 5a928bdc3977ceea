#include "server/simulation/capacity_plan.h"

#include "catch2/catch.hpp"
#include "nlohmann/json.hpp"

namespace heddle::server {
namespace {

// 100 pages of 16 tokens, 8 sequences at a time; a step of 1 ms.
CapacityQuestion Question(int32_t users, int32_t prompt_tokens, int32_t output_tokens) {
  CapacityQuestion question;
  question.scheduler = {.num_pages = 100,
                        .page_tokens = 16,
                        .max_context = 1024,
                        .max_step_tokens = 256,
                        .max_step_seqs = 8};
  question.capacity.weight_bytes = 1000;
  question.capacity.kv_bytes_per_token = 10;
  question.capacity.page_bytes = 160;
  question.machine = {.fixed_us = 1000};
  question.peak = {.weights_us = 500, .row_us = 1};
  question.users = users;
  question.prompt_tokens = prompt_tokens;
  question.output_tokens = output_tokens;
  return question;
}

CapacityAnswer Answer(const CapacityQuestion& question) {
  auto answer = AnswerCapacity(question);
  REQUIRE(answer.ok());
  return *std::move(answer);
}

TEST_CASE("Users fit as their whole pages do, and no more than run at a time", "[simulation]") {
  // 300 + 20 tokens are 20 pages: five users.
  const CapacityAnswer by_memory = Answer(Question(0, 300, 20));
  CHECK(by_memory.users_that_fit == 5);
  CHECK(by_memory.users == 5);
  CHECK(by_memory.limit == UserLimit::kKvMemory);
  // 10 + 10 tokens are 2 pages: fifty users, but eight run.
  const CapacityAnswer by_batch = Answer(Question(0, 10, 10));
  CHECK(by_batch.users_that_fit == 8);
  CHECK(by_batch.limit == UserLimit::kBatchSeqs);
  const CapacityAnswer none = Answer(Question(2, 1020, 20));
  CHECK(none.users_that_fit == 0);
  CHECK_FALSE(none.fits);
  CHECK(none.limit == UserLimit::kContext);
  CHECK(none.expected.requests == 0);
  // The question's machine has the memory: a larger pool would not do.
  const std::string text = CapacityText(Question(2, 1020, 20), none);
  CHECK(text.find("--max-context, or the model's own limit") != std::string::npos);
  CHECK(text.find("--kv-memory") == std::string::npos);
}

TEST_CASE("With windows a user holds a window, its grain and a step, and as many as fit are kept",
          "[simulation]") {
  CapacityQuestion question = Question(0, 900, 100);
  question.scheduler.windows = {64};
  question.scheduler.window_grain = 128;
  const CapacityAnswer answer = Answer(question);
  // 64 + 128 + 256 positions and three pages: 31 pages of 100.
  CHECK(answer.users_that_fit == 3);
  CHECK(answer.expected.requests > 0);
  CHECK(answer.expected.preemptions == 0);
}

TEST_CASE("Users of a model whose layers see differently far take pages of every group",
          "[simulation]") {
  CapacityQuestion question = Question(0, 900, 100);
  question.scheduler.num_pages = 200;
  question.scheduler.windows = {0, 64};
  question.scheduler.window_grain = 128;
  const CapacityAnswer answer = Answer(question);
  // 63 pages of all, and 31 of the window's: two users of 94 pages each.
  CHECK(answer.users_that_fit == 2);
  CHECK(answer.kv_bytes_needed == 2 * 94 * 160);
  CHECK(answer.expected.requests > 0);
  CHECK(answer.expected.preemptions == 0);
}

TEST_CASE("Users that do not fit are told the memory that they would need", "[simulation]") {
  const CapacityQuestion question = Question(7, 300, 20);
  const CapacityAnswer answer = Answer(question);
  CHECK_FALSE(answer.fits);
  CHECK(answer.kv_bytes_needed == 7 * 20 * 16 * 10);
  const std::string text = CapacityText(question, answer);
  CHECK(text.find("does not fit: 7 users of 300 + 20 tokens; 5 do") != std::string::npos);
  CHECK(text.find("--kv-memory 21.9 KiB") != std::string::npos);
  CHECK(text.find("expected  of the 5 that fit: ") != std::string::npos);
}

TEST_CASE("Peaks are those of the machine, and the expectation that of the simulator",
          "[simulation]") {
  const CapacityQuestion question = Question(4, 100, 60);
  const CapacityAnswer answer = Answer(question);
  CHECK(answer.fits);
  CHECK(answer.limit == UserLimit::kNone);
  CHECK(answer.peak_decode_tok_s == Approx(4 / 500e-6));
  CHECK(answer.decode_is_bandwidth);
  CHECK(answer.peak_prefill_tok_s == Approx(100 / 500e-6));
  CHECK(answer.expected.preemptions == 0);
  CHECK(answer.expected.inter_token.p50 == Approx(1).epsilon(0.005));
  const auto json = nlohmann::json::parse(CapacityJson(question, answer, {{"model", "m"}}));
  CHECK(json["fits"] == true);
  CHECK(json["limited_by"] == "none");
  CHECK(json["limits"]["num_pages"] == 100);
  CHECK(json["expected"]["preemptions"] == 0);
}

}  // namespace
}  // namespace heddle::server
