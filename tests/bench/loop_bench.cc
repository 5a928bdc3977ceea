// Measures the engine loop's cost on a device that runs steps by itself: the share of time in which
// the device stands still, with plans that wait for tokens and with plans ahead of them. The device
// is a clock: a step takes STEP_US, and handing it over takes the host LAUNCH_US.
//
//   loop_bench STREAMS STEP_US LAUNCH_US     256 5000 600 if there are none
//
// Two lines of JSON.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <thread>
#include <utility>

#include "tests/bench/serving_run.h"

namespace heddle {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

class ClockExecutor final : public engine::Executor {
 public:
  ClockExecutor(int32_t streams, microseconds step, microseconds launch)
      : limits_({.num_pages = streams * 64,
                 .page_tokens = 16,
                 .max_context = 1024,
                 .max_batch_tokens = 8192,
                 .max_batch_seqs = streams,
                 .vocab = 1000}),
        step_(step),
        launch_(launch) {}

  const engine::ExecutorLimits& limits() const override { return limits_; }
  int32_t max_in_flight() const override { return 2; }

  absl::Status Submit(const engine::StepPlan& plan, const engine::StepLocals&) override {
    SpinUntil(Clock::now() + launch_);
    const auto begin = std::max(Clock::now(), last_end_);
    Step step{.plan = &plan, .end = begin + step_};
    if (last_end_ != Clock::time_point()) {
      step.idle_ns =
          std::chrono::duration_cast<std::chrono::nanoseconds>(begin - last_end_).count();
    }
    last_end_ = step.end;
    steps_.push_back(step);
    return absl::OkStatus();
  }

  absl::Status Wait(engine::StepResult* result) override {
    const Step step = steps_.front();
    steps_.pop_front();
    // A sleeping thread wakes up late, unlike one that waits for a device.
    std::this_thread::sleep_until(step.end - microseconds(500));
    SpinUntil(step.end);
    result->step = step.plan->step;
    const std::vector<engine::SampleRow>& samples = step.plan->samples;
    result->gains.resize(samples.size());
    result->tokens.resize(samples.size());
    for (size_t i = 0; i < samples.size(); ++i) {
      result->gains[i] = {samples[i].id, static_cast<int32_t>(i), 1, 1};
      result->tokens[i].token = 1;
    }
    result->timing = {.forward_ns = step_.count() * 1000, .idle_ns = step.idle_ns};
    return absl::OkStatus();
  }

 private:
  struct Step {
    const engine::StepPlan* plan = nullptr;
    Clock::time_point end;
    int64_t idle_ns = -1;
  };

  static void SpinUntil(Clock::time_point end) {
    while (Clock::now() < end) {
    }
  }

  const engine::ExecutorLimits limits_;
  const microseconds step_;
  const microseconds launch_;
  Clock::time_point last_end_;
  std::deque<Step> steps_;
};

int Main(int argc, char** argv) {
  const auto number = [&](int i, int fallback) {
    return argc > i ? std::max(1, std::atoi(argv[i])) : fallback;
  };
  const int streams = number(1, 256), step_us = number(2, 5000), launch_us = number(3, 600);
  scheduler::SyntheticLoad load;
  load.num_requests = streams;
  load.mean_prompt_tokens = 128;
  load.mean_output_tokens = 512;
  load.requests_per_s = 0;
  for (const bool ahead : {false, true}) {
    auto executor =
        std::make_unique<ClockExecutor>(streams, microseconds(step_us), microseconds(launch_us));
    const auto report = test::RunServing(std::move(executor), load, ahead);
    std::printf("%s\n", report.ToJson(ahead ? "ahead" : "settled").c_str());
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace heddle

int main(int argc, char** argv) { return heddle::Main(argc, argv); }
