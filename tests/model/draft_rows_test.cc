// Slices whose rows are a tree of drafts, with positions and ancestor masks of their own: each row
// has the logits that it has at the end of its branch alone.
#include <cstdint>
#include <span>
#include <vector>

#include "catch2/catch.hpp"
#include "engine/model/load.h"
#include "engine/step.h"
#include "engine/whole_context.h"
#include "tests/model/synthetic_executor.h"
#include "tests/support/goldens.h"
#include "tests/support/greedy_runner.h"
#include "tests/support/synthetic_model.h"
#include "tests/support/temp_dir.h"

namespace heddle::engine {
namespace {

constexpr SequenceId kId{1};
constexpr int32_t kPageTokens = test::kSyntheticPageTokens;

// A draft: its token, and which earlier one it follows (-1: the context).
struct Draft {
  TokenId token;
  int32_t parent;
};

// Rows for positions [context, context + n) of the list of spans; page i of the pool is the i-th.
void AddSlice(int32_t context, int32_t n, StepPlan* plan) {
  for (int32_t at = context; at < context + n; ++at) {
    plan->kv_slots.push_back({PageId{at / kPageTokens}, at % kPageTokens});
  }
  const int32_t end = context + n;
  for (int32_t begin = 0; begin < end; begin += kPageTokens) {
    plan->spans.push_back({PageId{begin / kPageTokens}, std::min(kPageTokens, end - begin)});
  }
  plan->sequences.push_back({.id = kId,
                             .num_tokens = n,
                             .num_spans = static_cast<int32_t>(plan->spans.size()),
                             .context_tokens = end});
  for (int32_t row = 0; row < n; ++row) {
    plan->scores.push_back({kId, row, plan->token_ids[static_cast<size_t>(row)], 0});
  }
}

std::vector<float> Run(LocalExecutor& executor, StepPlan* plan) {
  const auto groups = static_cast<int32_t>(executor.limits().windows.size());
  AddWholeGroups(groups, executor.limits().num_pages / groups, plan);
  StepResult result;
  REQUIRE(executor.Submit(*plan, {}).ok());
  REQUIRE(executor.Wait(&result).ok());
  return executor.last_logits();
}

// The logits of the drafts' rows, [drafts, vocab], behind `context`.
std::vector<float> TreeLogits(LocalExecutor& executor, std::span<const TokenId> context,
                              std::span<const Draft> drafts) {
  StepPlan plan;
  plan.begun.push_back({kId, {}, {}});
  for (size_t i = 0; i < context.size(); ++i) {
    plan.token_ids.push_back(context[i]);
    plan.positions.push_back(static_cast<Position>(i));
  }
  AddSlice(0, static_cast<int32_t>(context.size()), &plan);
  Run(executor, &plan);
  plan.Clear();
  for (size_t i = 0; i < drafts.size(); ++i) {
    const int32_t parent = drafts[i].parent;
    plan.token_ids.push_back(drafts[i].token);
    plan.positions.push_back(parent < 0 ? static_cast<Position>(context.size())
                                        : plan.positions[static_cast<size_t>(parent)] + 1);
    plan.ancestor_masks.push_back(
        uint64_t{1} << i | (parent < 0 ? 0 : plan.ancestor_masks[static_cast<size_t>(parent)]));
  }
  const auto n = static_cast<int32_t>(drafts.size());
  AddSlice(static_cast<int32_t>(context.size()), n, &plan);
  plan.sequences[0].kind = SliceKind::kDraft;
  plan.sequences[0].num_masks = n;
  plan.ended.push_back(kId);
  return Run(executor, &plan);
}

TEST_CASE("A draft's row sees its own branch, whatever stands beside it in the tree", "[golden]") {
  const std::string name = GENERATE("llama", "qwen2", "gemma2");
  INFO(name);
  test::TempDir dir;
  auto executor = test::LoadSynthetic(name, dir.path());
  const test::Golden golden = test::LoadGolden(name);
  std::vector<TokenId> context(golden.prompt.begin(), golden.prompt.end());
  const std::vector<Draft> drafts = {{5, -1}, {7, 0}, {9, 0}, {11, 1}, {7, 2}, {13, 3}};
  const std::vector<float> tree = TreeLogits(*executor, context, drafts);
  const auto vocab = static_cast<size_t>(executor->limits().vocab);
  REQUIRE(tree.size() == drafts.size() * vocab);
  for (size_t i = 0; i < drafts.size(); ++i) {
    INFO("draft " << i);
    std::vector<TokenId> branch;
    for (auto at = static_cast<int32_t>(i); at >= 0; at = drafts[static_cast<size_t>(at)].parent) {
      branch.insert(branch.begin(), drafts[static_cast<size_t>(at)].token);
    }
    branch.insert(branch.begin(), context.begin(), context.end());
    const std::vector<float> alone = test::AllLogits(*executor, branch, 64);
    const float* wanted = alone.data() + (branch.size() - 1) * vocab;
    float worst = 0;
    for (size_t v = 0; v < vocab; ++v) {
      worst = std::max(worst, std::abs(tree[i * vocab + v] - wanted[v]));
    }
    // Masked keys stand between those of the branch, so that sums of the same terms are grouped
    // otherwise; logits are of the order of ten.
    CHECK(worst < 1e-4f);
  }
}

// Behind a draft that is right every token is banned.
TEST_CASE("A draft ends before the row from which no token can be drawn", "[golden]") {
  test::TempDir dir;
  auto executor = test::LoadSynthetic("llama", dir.path());
  const TokenId guess = 5;
  SamplingParams sampling;
  sampling.temperature = 0;
  sampling.logit_bias = {{guess, 100.0f}};
  for (TokenId token = 0; token < executor->limits().vocab; ++token) {
    sampling.bad_words.push_back({guess, token});
  }
  // One row, then the guess behind it, or the guess alone.
  const auto draw = [&](std::vector<TokenId> tokens, bool begins) {
    StepPlan plan;
    if (begins) plan.begun.push_back({kId, sampling, {}});
    const int32_t context = begins ? 0 : 1;
    plan.token_ids = tokens;
    for (size_t i = 0; i < tokens.size(); ++i) {
      plan.positions.push_back(context + static_cast<Position>(i));
    }
    AddSlice(context, static_cast<int32_t>(tokens.size()), &plan);
    plan.scores.clear();
    plan.samples.push_back({kId, 0, context + 1, static_cast<int32_t>(tokens.size())});
    AddWholeGroups(1, executor->limits().num_pages, &plan);
    StepResult result;
    REQUIRE(executor->Submit(plan, {}).ok());
    REQUIRE(executor->Wait(&result).ok());
    return result;
  };
  const StepResult first = draw({7, guess}, true);
  REQUIRE(first.gains.size() == 1);
  CHECK(first.gains[0].num_tokens == 1);
  CHECK(first.gains[0].rows_kept == 1);
  REQUIRE(first.tokens.size() == 1);
  CHECK(first.tokens[0].token == guess);
  const StepResult second = draw({guess}, false);
  REQUIRE(second.tokens.size() == 1);
  CHECK(second.gains[0].num_tokens == 1);
  CHECK(second.tokens[0].token == kNoToken);
}

}  // namespace
}  // namespace heddle::engine
