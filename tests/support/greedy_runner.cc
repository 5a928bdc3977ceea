#include "tests/support/greedy_runner.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>

#include "base/check.h"
#include "engine/whole_context.h"

namespace heddle::test {
namespace {

using engine::ExecutorLimits;
using engine::LocalExecutor;
using engine::PageId;
using engine::SequenceId;
using engine::StepPlan;
using engine::StepResult;
using engine::TokenId;

constexpr SequenceId kSequence{1};
constexpr int32_t kAdapterSlot = 1;

// Builds the plan of each step of one sequence whose pages lie in a shuffled order.
class OneSequence {
 public:
  OneSequence(const ExecutorLimits& limits, uint64_t page_seed, RunAdapter adapter)
      : limits_(limits), adapter_(std::move(adapter)) {
    pages_.resize(static_cast<size_t>(limits.num_pages / num_groups()));
    std::iota(pages_.begin(), pages_.end(), 0);
    std::shuffle(pages_.begin(), pages_.end(), std::mt19937_64(page_seed));
  }

  // A plan that runs `tokens` after what ran before; the caller adds samples and scores.
  void Extend(std::span<const TokenId> tokens, StepPlan* plan) {
    plan->Clear();
    if (length_ == 0) {
      plan->begun.push_back({.id = kSequence, .sampling = Greedy(), .prompt = {}});
      if (adapter_.image != nullptr) LoadAdapter(plan);
    }
    for (TokenId token : tokens) {
      HEDDLE_CHECK(length_ / limits_.page_tokens < limits_.num_pages / num_groups(),
                   "pool too small for test");
      plan->token_ids.push_back(token);
      plan->positions.push_back(length_);
      plan->kv_slots.push_back(
          {PageId{pages_[length_ / limits_.page_tokens]}, length_ % limits_.page_tokens});
      ++length_;
    }
    for (int32_t begin = 0; begin < length_; begin += limits_.page_tokens) {
      plan->spans.push_back({PageId{pages_[begin / limits_.page_tokens]},
                             std::min(limits_.page_tokens, length_ - begin)});
    }
    plan->sequences.push_back({.id = kSequence,
                               .num_tokens = static_cast<int32_t>(tokens.size()),
                               .num_spans = static_cast<int32_t>(plan->spans.size()),
                               .context_tokens = length_,
                               .adapter_slot = adapter_.image == nullptr ? -1 : kAdapterSlot});
    engine::AddWholeGroups(num_groups(), limits_.num_pages / num_groups(), plan);
  }

  int32_t length() const { return length_; }
  engine::StepLocals locals() const {
    engine::StepLocals locals;
    if (adapter_.image != nullptr) locals.adapters.push_back(adapter_.image);
    return locals;
  }

 private:
  void LoadAdapter(StepPlan* plan) {
    const int32_t count = adapter_.image->pages_of_each_rank();
    HEDDLE_CHECK(count < static_cast<int32_t>(pages_.size()), "pool too small for test");
    for (int32_t i = 0; i < count; ++i) {
      const PageId page{pages_[pages_.size() - 1 - static_cast<size_t>(i)]};
      plan->adapter_loads.push_back({adapter_.image->id, i, page});
      plan->adapter_pages.push_back(page);
    }
    plan->adapter_binds.push_back({.adapter = adapter_.image->id,
                                   .slot = kAdapterSlot,
                                   .scale = adapter_.scale,
                                   .page_begin = 0,
                                   .num_pages = count});
  }
  int32_t num_groups() const { return static_cast<int32_t>(limits_.windows.size()); }
  static engine::SamplingParams Greedy() {
    engine::SamplingParams params;
    params.temperature = 0.0f;
    return params;
  }

  ExecutorLimits limits_;
  RunAdapter adapter_;
  std::vector<int32_t> pages_;
  int32_t length_ = 0;
};

void Step(LocalExecutor& executor, const StepPlan& plan, StepResult* result,
          const engine::StepLocals& locals = {}) {
  absl::Status status = executor.Submit(plan, locals);
  if (status.ok()) status = executor.Wait(result);
  HEDDLE_CHECK(status.ok(), status.ToString());
}

void End(LocalExecutor& executor) {
  StepPlan plan;
  StepResult result;
  plan.ended.push_back(kSequence);
  Step(executor, plan, &result);
}

int32_t ChunkRows(const LocalExecutor& executor, int32_t wanted) {
  return std::min(wanted, executor.limits().max_batch_tokens);
}

}  // namespace

GreedyRun RunGreedy(LocalExecutor& executor, std::span<const TokenId> prompt,
                    const GreedyOptions& options) {
  OneSequence sequence(executor.limits(), options.page_seed, options.adapter);
  StepPlan plan;
  StepResult result;
  GreedyRun run;
  const size_t chunk = ChunkRows(executor, options.prefill_chunk);
  std::vector<TokenId> next;
  for (size_t begin = 0; begin < prompt.size(); begin += chunk) {
    sequence.Extend(prompt.subspan(begin, std::min(chunk, prompt.size() - begin)), &plan);
    if (begin + chunk >= prompt.size()) break;
    Step(executor, plan, &result, sequence.locals());
  }
  while (true) {
    plan.samples.push_back(
        {kSequence, static_cast<int32_t>(plan.token_ids.size()) - 1, sequence.length()});
    Step(executor, plan, &result, sequence.locals());
    if (run.ids.empty()) {
      const auto logits = executor.last_logits();
      run.first_logits.assign(logits.begin(), logits.end());
    }
    const TokenId token = result.tokens[0].token;
    run.ids.push_back(token);
    const bool stopped =
        std::find(options.stop.begin(), options.stop.end(), token) != options.stop.end();
    if (stopped || static_cast<int32_t>(run.ids.size()) >= options.max_tokens) break;
    next.assign(1, token);
    sequence.Extend(next, &plan);
  }
  End(executor);
  return run;
}

std::vector<float> PooledState(LocalExecutor& executor, std::span<const TokenId> prompt,
                               engine::Pooling pooling, int32_t prefill_chunk,
                               int32_t second_begin) {
  OneSequence sequence(executor.limits(), /*page_seed=*/3, {});
  StepPlan plan;
  StepResult result;
  const size_t chunk = ChunkRows(executor, prefill_chunk);
  for (size_t begin = 0; begin < prompt.size(); begin += chunk) {
    const auto tokens = prompt.subspan(begin, std::min(chunk, prompt.size() - begin));
    const auto rows = static_cast<int32_t>(tokens.size());
    const bool last = begin + chunk >= prompt.size();
    sequence.Extend(tokens, &plan);
    plan.sequences.back().second_begin = second_begin;
    if (pooling == engine::Pooling::kMean) plan.pools.push_back({kSequence, 0, rows, last});
    if (pooling == engine::Pooling::kLast && last) {
      plan.pools.push_back({kSequence, rows - 1, 1, true});
    }
    if (pooling == engine::Pooling::kFirst && (begin == 0 || last)) {
      plan.pools.push_back({kSequence, 0, begin == 0 ? 1 : 0, last});
    }
    Step(executor, plan, &result, sequence.locals());
  }
  HEDDLE_CHECK(result.pooled.size() == 1, "the last chunk gives the pooled state");
  std::vector<float> values = result.pooled[0].values;
  End(executor);
  return values;
}

std::vector<float> AllLogits(LocalExecutor& executor, std::span<const TokenId> prompt,
                             int32_t prefill_chunk, const RunAdapter& adapter) {
  OneSequence sequence(executor.limits(), /*page_seed=*/7, adapter);
  StepPlan plan;
  StepResult result;
  std::vector<float> all;
  const size_t chunk = std::min(ChunkRows(executor, prefill_chunk), LocalExecutor::kLeastLogitRows);
  for (size_t begin = 0; begin < prompt.size(); begin += chunk) {
    const auto tokens = prompt.subspan(begin, std::min(chunk, prompt.size() - begin));
    sequence.Extend(tokens, &plan);
    for (size_t i = 0; i < tokens.size(); ++i) {
      plan.scores.push_back({kSequence, static_cast<int32_t>(i), tokens[i], 0});
    }
    Step(executor, plan, &result, sequence.locals());
    const auto logits = executor.last_logits();
    all.insert(all.end(), logits.begin(), logits.end());
  }
  End(executor);
  return all;
}

}  // namespace heddle::test
