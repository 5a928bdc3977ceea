// Measures a plan of 256 decodes as a message: 1,000 positions of context each, two groups of
// layers, tokens that are not drawn yet. One iteration is one plan. The goal is 20 us and 4 KB.
#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "base/check.h"
#include "benchmark/benchmark.h"
#include "engine/parallel/plan_codec.h"
#include "tests/parallel/plans.h"

namespace heddle::engine {
namespace {

constexpr int kPlans = 64;
constexpr uint64_t kSequences = 256;

std::vector<StepPlan> Decodes() {
  std::vector<StepPlan> plans;
  for (uint64_t step = 1; step <= kPlans; ++step) {
    StepPlan& plan = plans.emplace_back(EmptyPlan(step));
    for (uint64_t i = 0; i < kSequences; ++i) {
      const auto context = static_cast<int32_t>(1000 + i % 16 + step);
      AddSlice(1000 + i, static_cast<int32_t>(i) * 150, context, 1, &plan, 50'000, 32);
      plan.sequences.back().list_version = i + 1;  // as page tables have it that only grow
      plan.more_groups[0].ranges.back().list_version = i + 1;
      plan.token_ids.back() = kNoToken;
      plan.undrawn.push_back({static_cast<int32_t>(i), static_cast<int32_t>(i), step - 1});
    }
  }
  return plans;
}

std::vector<std::string> Messages(const std::vector<StepPlan>& plans) {
  PlanEncoder encoder(TestLimits());
  std::vector<std::string> messages(plans.size());
  for (size_t i = 0; i < plans.size(); ++i) encoder.Encode(plans[i], &messages[i]);
  return messages;
}

double Seconds(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// A plan has just been written when it is encoded, so it is copied before: it lies in the cache.
// The first plan of a stream is longer, and not counted.
void Encode(benchmark::State& state) {
  const std::vector<StepPlan> plans = Decodes();
  PlanEncoder encoder(TestLimits());
  StepPlan plan;
  std::string message;
  size_t next = 0;
  size_t bytes = 0;
  for (auto _ : state) {
    if (next == 0) {
      encoder = PlanEncoder(TestLimits());
      encoder.Encode(plans[next++], &message);
    }
    plan = plans[next];
    next = (next + 1) % plans.size();
    message.clear();
    const auto begin = std::chrono::steady_clock::now();
    encoder.Encode(plan, &message);
    state.SetIterationTime(Seconds(begin));
    bytes = std::max(bytes, message.size());
  }
  state.counters["bytes"] = static_cast<double>(bytes);
}

void Decode(benchmark::State& state) {
  const std::vector<std::string> messages = Messages(Decodes());
  PlanDecoder decoder(TestLimits());
  StepPlan plan;
  size_t next = 0;
  for (auto _ : state) {
    if (next == 0) {
      decoder = PlanDecoder(TestLimits());
      HEDDLE_CHECK(decoder.Decode(messages[next++], &plan).ok(), "a message is refused");
    }
    const auto begin = std::chrono::steady_clock::now();
    HEDDLE_CHECK(decoder.Decode(messages[next], &plan).ok(), "a message is refused");
    state.SetIterationTime(Seconds(begin));
    next = (next + 1) % messages.size();
  }
}

BENCHMARK(Encode)->Unit(benchmark::kMicrosecond)->UseManualTime();
BENCHMARK(Decode)->Unit(benchmark::kMicrosecond)->UseManualTime();

}  // namespace
}  // namespace heddle::engine

BENCHMARK_MAIN();
