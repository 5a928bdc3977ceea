// Scheduler and executor on the emulated CUDA device, or on the PTX machine, with each step planned
// and launched before the last one's tokens are read, and without: the same tokens, whatever is in
// the batch. On a late machine nothing runs before it is waited for, so that memory which two steps
// share shows.
#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/grammar/compiled_grammar.h"
#include "engine/grammar/gbnf.h"
#include "engine/model/load.h"
#include "kernels/cuda/cuda_device.h"
#include "scheduler/scheduler.h"
#include "tests/emulate/machine.h"
#include "tests/support/long_runs.h"
#include "tests/support/paths.h"

namespace heddle {
namespace {

using engine::TokenId;
using scheduler::FinishReason;
using scheduler::GenerationRequest;
using scheduler::RequestId;
using scheduler::Scheduler;
using scheduler::SchedulerOptions;

// Applies to the emulated device; others cannot be changed.
void SetLate([[maybe_unused]] bool is_late) {
#if defined(HEDDLE_CUDA_EMULATE)
  kernels::cuda::emulate::SetMachine({.is_late = is_late});
#endif
}

struct Outcome {
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;
  FinishReason reason = FinishReason::kStop;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

struct Served {
  std::map<std::pair<RequestId, int32_t>, Outcome> outcomes;
  int64_t preemptions = 0;
  int64_t swapped = 0;
  int64_t steps = 0;
  int64_t steps_ahead = 0;
  int64_t forced = 0;
};

std::unique_ptr<engine::LocalExecutor> LoadStories() {
  engine::LoadOptions options;
  options.make_device = [] {
    return kernels::CreateCudaDevice(
        {.activations = kernels::DType::kF32, .workspace_bytes = int64_t{4} << 20});
  };
  options.capacity.kv_bytes = 8 << 20;
  options.capacity.host_kv_bytes = 1 << 20;
  options.capacity.page_tokens = 4;
  options.capacity.max_batch_tokens = 64;
  options.kv_type = "f32";
  auto model = engine::LoadLocalModel(test::SharedDataOrSkip("stories260K"), options);
  INFO(model.status().ToString());
  REQUIRE(model.ok());
  return std::move(model->executor);
}

SchedulerOptions OptionsFor(const engine::ExecutorLimits& limits) {
  return {.num_pages = limits.num_pages,
          .num_host_pages = limits.num_host_pages,
          .page_tokens = limits.page_tokens,
          .max_context = limits.max_context,
          .windows = limits.windows,
          .window_grain = limits.window_grain,
          .state_groups = limits.state_groups,
          .state_is_snapshot = limits.state_is_snapshot,
          .max_step_tokens = 32,
          .max_step_seqs = 8};
}

void Book(const std::vector<scheduler::SequenceEvent>& events, const engine::StepResult& result,
          Served* served) {
  for (const scheduler::SequenceEvent& event : events) {
    Outcome& outcome = served->outcomes[{event.request, event.branch}];
    for (int32_t i = 0; i < event.num_tokens; ++i) {
      const engine::SampledToken& token = result.tokens.at(event.token_begin + i);
      outcome.tokens.push_back(token.token);
      if (i == 0) outcome.logprobs.push_back(token.logprob);
    }
    if (event.finished) outcome.reason = event.reason;
  }
}

// The requests come one after the other, `spacing` steps apart. A step takes so long by the
// scheduler's clock that swapping a page always pays.
Served Serve(engine::Executor& executor, const SchedulerOptions& options,
             const std::vector<GenerationRequest>& requests, int32_t spacing, bool ahead) {
  Scheduler scheduler(options);
  engine::StepPlan plans[2];
  engine::StepResult result;
  std::vector<scheduler::SequenceEvent> events;
  Served served;
  size_t added = 0;
  bool has_next = false;
  for (int64_t step = 1;; ++step) {
    const int64_t now = step * 1'000'000;
    while (added < requests.size() && step > spacing * static_cast<int64_t>(added)) {
      scheduler.Add(requests[added++], now);
    }
    engine::StepPlan& plan = plans[step % 2];
    engine::StepPlan& next = plans[(step + 1) % 2];
    if (!has_next) {
      scheduler.Plan(now, &plan);
      if (plan.empty() && added < requests.size()) continue;
      if (plan.empty()) break;
      REQUIRE(executor.Submit(plan, scheduler.locals()).ok());
    }
    has_next = ahead && scheduler.PlanAhead(now, &next);
    if (has_next) REQUIRE(executor.Submit(next, scheduler.locals()).ok());
    served.steps_ahead += has_next ? 1 : 0;
    ++served.steps;
    REQUIRE(executor.Wait(&result).ok());
    events.clear();
    scheduler.Commit(result, now, &events);
    Book(events, result, &served);
    REQUIRE(scheduler.CheckIntegrity().ok());
  }
  CHECK(scheduler.stats().pages_used == 0);
  served.preemptions = scheduler.stats().preemptions;
  served.forced = scheduler.stats().forced_tokens;
  served.swapped = scheduler.stats().pages_swapped_in;
  return served;
}

// Requests are greedy and drawn, alone and in branches, of different lengths, stopped and cut off.
std::vector<GenerationRequest> Requests() {
  std::vector<GenerationRequest> requests;
  const auto add = [&](int32_t num_prompt, int32_t max_tokens) -> GenerationRequest& {
    GenerationRequest& request = requests.emplace_back();
    request.id = RequestId{requests.size()};
    request.prompt = {1};
    for (int32_t i = 1; i < num_prompt; ++i) {
      request.prompt.push_back(3 + (i * 37 + static_cast<int32_t>(requests.size()) * 11) % 500);
    }
    request.max_tokens = max_tokens;
    request.sampling.temperature = 0.0f;
    request.sampling.num_logprobs = 0;
    request.sampling.seed = requests.size();
    return request;
  };
  add(6, 16);
  add(9, 14).sampling.temperature = 1.0f;
  GenerationRequest& branches = add(9, 12);
  branches.num_branches = 3;
  branches.sampling.temperature = 0.8f;
  branches.sampling.top_p = 0.9f;
  add(40, 9).sampling.temperature = 1.2f;  // a prompt in two chunks
  GenerationRequest& banned = add(5, 10);
  banned.sampling.min_tokens = 4;
  banned.sampling.min_tokens_banned = {1, 2};
  add(3, 1);
  return requests;
}

TEST_CASE("Steps launched ahead of the tokens bring the same tokens", "[cuda]") {
  const auto executor = LoadStories();
  REQUIRE(executor->max_in_flight() == 2);
  std::vector<GenerationRequest> requests = Requests();
  const SchedulerOptions roomy = OptionsFor(executor->limits());
  const Served settled = Serve(*executor, roomy, requests, 2, /*ahead=*/false);
  CHECK(settled.steps_ahead == 0);

  // With so few pages, some sequences are preempted and come back from the host's tier.
  SchedulerOptions tight = roomy;
  tight.num_pages = 14;
  tight.num_host_pages = std::min(20, roomy.num_host_pages);
  SetLate(true);
  const Served pressed = Serve(*executor, tight, requests, 0, /*ahead=*/true);
  INFO("pages " << tight.num_pages << " of " << tight.page_tokens << ", host "
                << tight.num_host_pages);
  CHECK(pressed.outcomes == settled.outcomes);
  CHECK(pressed.preemptions > 0);
  CHECK(pressed.swapped > 0);
  CHECK(pressed.steps_ahead > 10);

  // Two of them are also ended by unexpected events.
  Served wanted = settled;
  for (const size_t i : {0, 1}) {
    Outcome& outcome = wanted.outcomes.at({requests[i].id, 0});
    requests[i].stop_tokens = {outcome.tokens[2 + 2 * i]};
    const auto end =
        std::find(outcome.tokens.begin(), outcome.tokens.end(), requests[i].stop_tokens[0]);
    outcome.tokens.erase(end + 1, outcome.tokens.end());
    outcome.logprobs.resize(outcome.tokens.size());
    outcome.reason = FinishReason::kStop;
  }
  const Served ahead = Serve(*executor, roomy, requests, 2, /*ahead=*/true);
  SetLate(false);
  CHECK(ahead.outcomes == wanted.outcomes);
  CHECK(ahead.steps_ahead > ahead.steps / 2);
}

// Letters, of which token 3 is "a"; 2 ends a text. Behind an "a", and behind "i" or "j", there is
// no choice.
std::shared_ptr<engine::grammar::CompiledGrammar> Letters() {
  static const std::string kLetters = "abcdefghijkl";
  const auto text_of = [](TokenId id) {
    const auto letter = static_cast<size_t>(id - 3);
    return std::string_view(kLetters).substr(std::min(letter, kLetters.size()), 1);
  };
  const auto encode = [](std::string_view text) {
    std::vector<TokenId> tokens;
    for (char letter : text) tokens.push_back(3 + letter - 'a');
    return tokens;
  };
  auto vocabulary = std::make_shared<engine::grammar::Vocabulary>(512, text_of, encode);
  return std::make_shared<engine::grammar::CompiledGrammar>(
      *engine::grammar::Compile(
          *engine::grammar::ParseGbnf(R"(root ::= ("a" "fgh" | [bcde] | [ij] "k")+ "l" "l")")),
      vocabulary, std::vector<TokenId>{2});
}

TEST_CASE("Draws that wait for the last token are the same when their step is launched ahead",
          "[cuda]") {
  const auto executor = LoadStories();
  std::vector<GenerationRequest> requests = Requests();
  requests[1].sampling.repetition_penalty = 1.3f;
  requests[2].sampling.bad_words = {{20, 21}, {300}};
  requests[3].prompt_logprobs = 1;  // more rows of logits than are held at a time
  requests.push_back(requests[1]);
  GenerationRequest constrained = requests.back();
  constrained.id = RequestId{requests.size()};
  constrained.grammar = Letters();
  constrained.sampling.num_logprobs = -1;
  constrained.stop_tokens = {2};
  constrained.max_tokens = 40;
  requests.back() = constrained;
  requests.push_back(constrained);
  requests.back().id = RequestId{requests.size()};
  requests.back().sampling.num_logprobs = 0;  // what is forced is drawn
  const SchedulerOptions options = OptionsFor(executor->limits());
  Served settled = Serve(*executor, options, requests, 2, /*ahead=*/false);
  SetLate(true);
  Served ahead = Serve(*executor, options, requests, 2, /*ahead=*/true);
  SetLate(false);
  // These were not asked for.
  for (Served* served : {&settled, &ahead}) {
    served->outcomes.at({constrained.id, 0}).logprobs.clear();
  }
  CHECK(ahead.outcomes == settled.outcomes);
  CHECK(ahead.steps_ahead > ahead.steps / 2);
  CHECK(settled.forced > 2);
  CHECK(ahead.forced == settled.forced);
  // With no patience for masks, draws whose masks are unknown are left out and drawn later, with
  // the same result.
  executor->set_mask_patience({std::chrono::microseconds(0), std::chrono::microseconds(0)});
  for (bool is_ahead : test::Some(1, {true, false})) {
    for (GenerationRequest& request : requests) {
      if (request.grammar != nullptr) request.grammar = Letters();  // knows no mask
    }
    Served impatient = Serve(*executor, options, requests, 2, is_ahead);
    impatient.outcomes.at({constrained.id, 0}).logprobs.clear();
    CHECK(impatient.outcomes == settled.outcomes);
  }
}

TEST_CASE("Embeddings of prompts do not mix with the step behind them", "[cuda]") {
  const auto executor = LoadStories();
  const SchedulerOptions options = OptionsFor(executor->limits());
  const auto pooled = [&](bool ahead) {
    Scheduler scheduler(options);
    GenerationRequest stream = Requests()[0];
    stream.max_tokens = 5;
    GenerationRequest embedding = Requests()[1];
    embedding.max_tokens = 0;
    embedding.pooling = engine::Pooling::kMean;
    scheduler.Add(stream, 0);
    scheduler.Add(embedding, 0);
    engine::StepPlan plans[2];
    engine::StepResult result;
    std::vector<scheduler::SequenceEvent> events;
    std::vector<float> values;
    bool has_next = false;
    for (int64_t now = 1; !scheduler.idle(); ++now) {
      if (!has_next) {
        scheduler.Plan(now, &plans[now % 2]);
        REQUIRE(executor->Submit(plans[now % 2], {}).ok());
      }
      has_next = ahead && scheduler.PlanAhead(now, &plans[(now + 1) % 2]);
      if (has_next) REQUIRE(executor->Submit(plans[(now + 1) % 2], {}).ok());
      REQUIRE(executor->Wait(&result).ok());
      if (!result.pooled.empty()) values = result.pooled[0].values;
      scheduler.Commit(result, now, &events);
    }
    scheduler.Plan(1000, &plans[0]);  // that which ends the sequences
    REQUIRE(executor->Submit(plans[0], {}).ok());
    REQUIRE(executor->Wait(&result).ok());
    return values;
  };
  const std::vector<float> settled = pooled(false);
  REQUIRE(!settled.empty());
  SetLate(true);
  CHECK(pooled(true) == settled);
  SetLate(false);
}

}  // namespace
}  // namespace heddle
