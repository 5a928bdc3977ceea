#include "tests/heads/draft_chain.h"

#include <algorithm>
#include <utility>

#include "catch2/catch.hpp"
#include "engine/heads/open_heads.h"
#include "engine/whole_context.h"
#include "tests/support/synthetic_model.h"

namespace heddle::test {
namespace {

using engine::PageId;
using engine::TokenId;

constexpr engine::SequenceId kId{1};
constexpr int32_t kPageTokens = 8;

// Rows [begin, end) of the prompt in a plan; page i of the pool is the i-th.
engine::StepPlan PromptPlan(const std::vector<TokenId>& prompt, int32_t begin, int32_t end) {
  engine::StepPlan plan;
  plan.feeds_drafter = true;
  for (int32_t at = begin; at < end; ++at) {
    plan.token_ids.push_back(prompt[static_cast<size_t>(at)]);
    plan.positions.push_back(at);
    plan.kv_slots.push_back({PageId{at / kPageTokens}, at % kPageTokens});
  }
  for (int32_t at = 0; at < end; at += kPageTokens) {
    plan.spans.push_back({PageId{at / kPageTokens}, std::min(kPageTokens, end - at)});
  }
  const bool is_last = end == static_cast<int32_t>(prompt.size());
  plan.sequences.push_back(
      {.id = kId,
       .num_tokens = end - begin,
       .num_spans = static_cast<int32_t>(plan.spans.size()),
       .context_tokens = end,
       .next_token = is_last ? engine::kNoToken : prompt[static_cast<size_t>(end)]});
  return plan;
}

}  // namespace

std::unique_ptr<engine::LocalExecutor> LoadBeside(const DraftGolden& golden,
                                                  const std::filesystem::path& folder,
                                                  engine::LoadOptions options) {
  options.capacity.kv_bytes = 4 << 20;
  options.capacity.page_tokens = kPageTokens;
  options.capacity.max_batch_tokens = 64;
  options.kv_type = "f32";
  const auto files = folder / "network";
  if (!golden.is_mtp()) WriteSyntheticModel(golden.files, files);
  options.open_draft = [&](const engine::Checkpoint& target,
                           const engine::ModelDescription& model) {
    return OpenNetwork(golden, files, target, model);
  };
  auto model = engine::LoadLocalModel(WriteSyntheticModel(golden.model, folder / "model"), options);
  INFO(model.status().ToString());
  REQUIRE(model.ok());
  return std::move(model->executor);
}

std::vector<TokenId> ChainOf(engine::LocalExecutor& executor, const std::vector<TokenId>& prompt,
                             int32_t first_rows, int32_t num_guesses) {
  const auto size = static_cast<int32_t>(prompt.size());
  engine::StepResult result;
  for (const auto& [begin, end] : {std::pair{0, first_rows}, std::pair{first_rows, size}}) {
    if (begin == end) continue;
    engine::StepPlan plan = PromptPlan(prompt, begin, end);
    if (begin == 0) {
      plan.begun.push_back({kId, {}, {}});
      plan.begun.back().sampling.temperature = 0.0f;
    }
    if (end == size) {
      plan.samples.push_back({kId, end - begin - 1, size});
      const int32_t num_slots = num_guesses + executor.limits().rows_beyond_guesses;
      plan.drafts_ahead.push_back({0, num_guesses, 0, num_slots, 0.0f});
      for (int32_t at = size; at < size + num_slots; ++at) {
        plan.ahead_slots.push_back({PageId{at / kPageTokens}, at % kPageTokens});
      }
      plan.ended.push_back(kId);
    }
    const auto groups = static_cast<int32_t>(executor.limits().windows.size());
    engine::AddWholeGroups(groups, executor.limits().num_pages / groups, &plan);
    REQUIRE(executor.Submit(plan, {}).ok());
    REQUIRE(executor.Wait(&result).ok());
    REQUIRE(result.draft_failure.empty());
  }
  std::vector<TokenId> chain = {result.tokens.at(0).token};
  for (const engine::GuessedToken& guess : result.guesses) chain.push_back(guess.token);
  return chain;
}

}  // namespace heddle::test
