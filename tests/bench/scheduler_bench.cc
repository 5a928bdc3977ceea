// Time and heap allocations of planning and committing one step, with 1,024 running sequences and
// with 10,000 more waiting. The executor's part is replaced by a prepared result.
// Goal (issue of the scheduler): under 100 us per plan, nothing per waiting request, no allocation.
#include <chrono>

#include "benchmark/benchmark.h"
#include "scheduler/scheduler.h"
#include "tests/bench/allocations.h"

namespace heddle::scheduler {
namespace {

constexpr int32_t kPageTokens = 16;
constexpr int32_t kMaxTokens = 1 << 20;  // nobody finishes

// Answers every sample with token 1 and keeps its memory.
void Answer(const engine::StepPlan& plan, engine::StepResult* result) {
  result->step = plan.step;
  result->gains.resize(plan.samples.size());
  result->tokens.resize(plan.samples.size());
  result->scores.resize(plan.scores.size());
  for (size_t i = 0; i < plan.samples.size(); ++i) {
    result->gains[i] = {plan.samples[i].id, static_cast<int32_t>(i), 1, 1};
    result->tokens[i].token = 1;
  }
}

class Load {
 public:
  Load(int32_t running, int32_t waiting, int32_t prompt_tokens, int32_t groups)
      : scheduler_({.num_pages = groups * running * (prompt_tokens + 8192) / kPageTokens,
                    .page_tokens = kPageTokens,
                    .max_context = kMaxTokens,
                    .windows = Windows(groups),
                    .window_grain = 512,
                    .max_step_tokens = 16384,
                    .max_step_seqs = running}) {
    for (int32_t i = 0; i < running + waiting; ++i) {
      GenerationRequest request;
      request.id = RequestId{static_cast<uint64_t>(i)};
      request.prompt.assign(prompt_tokens, i);  // no two alike
      request.max_tokens = kMaxTokens;
      scheduler_.Add(std::move(request), 0);
    }
    do {
      Plan();
      Commit();
    } while (plan_.samples.size() < static_cast<size_t>(running));
  }

  void Plan() { scheduler_.Plan(0, &plan_); }
  void Commit() {
    Answer(plan_, &result_);
    events_.clear();
    scheduler_.Commit(result_, 0, &events_);
  }
  size_t num_rows() const { return plan_.token_ids.size(); }

 private:
  // Layers with full attention, and groups of others with a window of 512 positions.
  static std::vector<int32_t> Windows(int32_t groups) {
    std::vector<int32_t> windows(static_cast<size_t>(groups), 512);
    windows[0] = 0;
    return windows;
  }

  Scheduler scheduler_;
  engine::StepPlan plan_;
  engine::StepResult result_;
  std::vector<SequenceEvent> events_;
};

// Arguments: running sequences, waiting requests, prompt tokens of each, groups of layers.
void BM_DecodeStep(benchmark::State& state) {
  Load load(static_cast<int32_t>(state.range(0)), static_cast<int32_t>(state.range(1)),
            static_cast<int32_t>(state.range(2)), static_cast<int32_t>(state.range(3)));
  int64_t allocations = 0;
  for (auto _ : state) {
    int64_t before = bench::NumAllocations();
    auto begin = std::chrono::steady_clock::now();
    load.Plan();
    auto end = std::chrono::steady_clock::now();
    load.Commit();
    allocations += bench::NumAllocations() - before;
    state.SetIterationTime(std::chrono::duration<double>(end - begin).count());
  }
  state.counters["rows"] = static_cast<double>(load.num_rows());
  state.counters["allocs_per_step"] =
      static_cast<double>(allocations) / static_cast<double>(state.iterations());
}
BENCHMARK(BM_DecodeStep)
    ->Args({1024, 0, 128, 1})
    ->Args({1024, 10000, 128, 1})
    ->Args({1024, 0, 1024, 1})
    ->Args({32, 0, 1024, 1})
    ->Args({1024, 0, 128, 2})
    ->Args({1024, 0, 1024, 2})
    ->Args({1024, 0, 128, 7})
    ->Iterations(1000)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

// A scheduler with one branch that runs and leaves a context.
struct RunningBranch {
  explicit RunningBranch(int32_t tokens)
      : scheduler({.num_pages = 2 * tokens / kPageTokens + 1024,
                   .page_tokens = kPageTokens,
                   .max_context = kMaxTokens,
                   .max_step_tokens = 1 << 17,
                   .max_step_seqs = 8}) {
    GenerationRequest request;
    request.id = RequestId{1};
    request.prompt.assign(static_cast<size_t>(tokens), 3);
    request.max_tokens = kMaxTokens;
    request.keep = ContextId{1};
    scheduler.Add(std::move(request), 0);
    Step();
  }
  void Step() {
    scheduler.Plan(0, &plan);
    Answer(plan, &result);
    events.clear();
    scheduler.Commit(result, 0, &events);
  }
  Scheduler scheduler;
  engine::StepPlan plan;
  engine::StepResult result;
  std::vector<SequenceEvent> events;
};

// A fork of a branch that runs, behind its last token, and its end. Argument: its tokens.
void BM_Fork(benchmark::State& state) {
  const auto tokens = static_cast<int32_t>(state.range(0));
  RunningBranch branch(tokens);
  for (auto _ : state) {
    branch.scheduler.ForkContext(ContextId{1}, tokens + 1, ContextId{2});
    branch.scheduler.DropContext(ContextId{2});
  }
}
BENCHMARK(BM_Fork)->Arg(1024)->Arg(8192)->Arg(65536)->Unit(benchmark::kMicrosecond);

// The same where the branch draws a token between forks, so that its last page is copied.
void BM_ForkBetweenSteps(benchmark::State& state) {
  auto tokens = static_cast<int32_t>(state.range(0));
  RunningBranch branch(tokens);
  for (auto _ : state) {
    branch.Step();
    ++tokens;
    const auto begin = std::chrono::steady_clock::now();
    branch.scheduler.ForkContext(ContextId{1}, tokens + 1, ContextId{2});
    branch.scheduler.DropContext(ContextId{2});
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
    state.SetIterationTime(time.count());
  }
}
BENCHMARK(BM_ForkBetweenSteps)
    ->Arg(1024)
    ->Arg(65536)
    ->Iterations(1000)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

// The first fork of a branch.
void BM_FirstFork(benchmark::State& state) {
  const auto tokens = static_cast<int32_t>(state.range(0));
  for (auto _ : state) {
    RunningBranch branch(tokens);
    const auto begin = std::chrono::steady_clock::now();
    branch.scheduler.ForkContext(ContextId{1}, tokens + 1, ContextId{2});
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
    state.SetIterationTime(time.count());
  }
}
BENCHMARK(BM_FirstFork)
    ->Arg(1024)
    ->Arg(65536)
    ->Iterations(100)
    ->UseManualTime()
    ->Unit(benchmark::kMicrosecond);

// Joins 16 branches of 256 tokens side by side behind so many tokens.
void BM_Join(benchmark::State& state) {
  constexpr int32_t kChildren = 16;
  const auto tokens = static_cast<int32_t>(state.range(0));
  Scheduler scheduler({.num_pages = 2 * tokens / kPageTokens + 1024,
                       .page_tokens = kPageTokens,
                       .max_context = kMaxTokens,
                       .max_step_tokens = 1 << 17,
                       .max_step_seqs = kChildren});
  engine::StepPlan plan;
  engine::StepResult result;
  std::vector<SequenceEvent> events;
  std::vector<ContextId> children;
  const ContextParts apart = PartsApart({}, tokens);
  for (uint64_t c = 1; c <= kChildren; ++c) {
    GenerationRequest request;
    request.id = RequestId{c};
    request.prompt.assign(static_cast<size_t>(tokens) + 256, 3);
    request.parts = apart;
    request.max_tokens = 1;
    request.keep = ContextId{c};
    children.push_back(request.keep);
    scheduler.Add(std::move(request), 0);
    do {
      scheduler.Plan(0, &plan);
      if (plan.empty()) break;
      Answer(plan, &result);
      scheduler.Commit(result, 0, &events);
    } while (true);
  }
  const std::vector<const ContextParts*> parts(kChildren, &apart);
  const std::vector<int32_t> lengths(kChildren, tokens + 257);
  const ContextJoin join{
      .children = children,
      .lengths = lengths,
      .at = tokens,
      .parts = JoinParts(parts, lengths, tokens),
      .tokens = std::vector<TokenId>(static_cast<size_t>(tokens + 257 * kChildren), 3),
      .to = ContextId{100}};
  for (auto _ : state) {
    scheduler.JoinContexts(join);
    scheduler.DropContext(ContextId{100});
  }
}
BENCHMARK(BM_Join)->Arg(1024)->Arg(8192)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace heddle::scheduler

BENCHMARK_MAIN();
