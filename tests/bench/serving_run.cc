#include "tests/bench/serving_run.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "scheduler/simulation/latency_histogram.h"
#include "server/loop/engine_loop.h"

namespace heddle::test {
namespace {

using Clock = std::chrono::steady_clock;
using server::GenerationEvent;

// Collects what the loop's thread reports, and lets the caller wait for it.
class Recorder {
 public:
  explicit Recorder(int64_t requests) : open_(requests) {}

  // A sink for a request that is submitted now.
  server::EventSink Sink() {
    return [this, begin = Clock::now(), last = Clock::time_point{}](GenerationEvent&& e) mutable {
      Record(e, begin, &last);
    };
  }
  void Fail(absl::Status error) {
    std::lock_guard lock(mutex_);
    CountFailure(std::move(error));
    Close();
  }
  void Wait() {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return open_ == 0; });
  }
  void Fill(ServingReport* report) const {
    report->failed = failed_;
    report->error = error_;
    report->output_tokens = tokens_;
    report->first_token_ms_p50 = first_.PercentileUs(0.5) / 1e3;
    report->first_token_ms_p99 = first_.PercentileUs(0.99) / 1e3;
    report->between_tokens_ms_p50 = between_.PercentileUs(0.5) / 1e3;
    report->between_tokens_ms_p99 = between_.PercentileUs(0.99) / 1e3;
  }

 private:
  void Record(const GenerationEvent& event, Clock::time_point begin, Clock::time_point* last) {
    const auto now = Clock::now();
    std::lock_guard lock(mutex_);
    if (!event.tokens.empty()) {
      const bool is_first = *last == Clock::time_point{};
      const std::chrono::duration<double, std::micro> wait = now - (is_first ? begin : *last);
      (is_first ? first_ : between_).Add(wait.count());
      *last = now;
      tokens_ += static_cast<int64_t>(event.tokens.size());
    }
    if (!event.finished) return;
    if (event.reason == server::FinishReason::kError) CountFailure(event.error);
    Close();
  }
  void CountFailure(absl::Status error) {
    if (failed_++ == 0) error_ = std::move(error);
  }
  void Close() {
    if (--open_ == 0) done_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable done_;
  int64_t open_;
  int64_t failed_ = 0;
  absl::Status error_;
  int64_t tokens_ = 0;
  scheduler::LatencyHistogram first_, between_;
};

server::EngineLoopOptions OptionsFor(const scheduler::SyntheticLoad& load, bool plan_ahead) {
  server::EngineLoopOptions options;
  options.plan_ahead = plan_ahead;
  options.max_queue = 2 * load.num_requests;  // they are one client's, who never gets all of it
  options.target_inter_token_us = 0;          // throughput; latency is reported as it comes
  return options;
}

// Passes steps on, and adds up how long the device may have waited for launches of a step: from
// when the step before had ended, or had none before it, to when the host had handed the step over.
class Watched final : public engine::Executor {
 public:
  explicit Watched(engine::Executor& executor) : executor_(executor) {}
  const engine::ExecutorLimits& limits() const override { return executor_.limits(); }
  int32_t max_in_flight() const override { return executor_.max_in_flight(); }
  absl::Status Submit(const engine::StepPlan& plan, const engine::StepLocals& locals) override {
    const auto begin = Clock::now();
    const absl::Status status = executor_.Submit(plan, locals);
    if (status.ok()) handed_over_.push_back({begin, Clock::now()});
    return status;
  }
  absl::Status Wait(engine::StepResult* result) override {
    const absl::Status status = executor_.Wait(result);
    // The first in flight has ended just now, unless it did so while nobody waited.
    const auto ended = Clock::now();
    if (handed_over_.empty()) return status;
    const HandedOver own = handed_over_.front();
    handed_over_.pop_front();
    const auto device_free = std::max(own.begin, last_end_);
    // Where nothing runs by itself, Submit is the step.
    if (max_in_flight() > 1 && own.end > device_free) {
      starved_ns_ += std::chrono::nanoseconds(own.end - device_free).count();
    }
    last_end_ = ended;
    return status;
  }
  // Any thread.
  double starved_seconds() const { return static_cast<double>(starved_ns_) / 1e9; }

 private:
  struct HandedOver {
    Clock::time_point begin, end;
  };
  engine::Executor& executor_;
  std::deque<HandedOver> handed_over_;
  Clock::time_point last_end_;
  std::atomic<int64_t> starved_ns_ = 0;
};

// The loop owns what it runs.
class Borrowed final : public engine::Executor {
 public:
  explicit Borrowed(engine::Executor& executor) : executor_(executor) {}
  const engine::ExecutorLimits& limits() const override { return executor_.limits(); }
  int32_t max_in_flight() const override { return executor_.max_in_flight(); }
  absl::Status Submit(const engine::StepPlan& plan, const engine::StepLocals& locals) override {
    return executor_.Submit(plan, locals);
  }
  absl::Status Wait(engine::StepResult* result) override { return executor_.Wait(result); }

 private:
  engine::Executor& executor_;
};

}  // namespace

ServingReport RunServing(std::unique_ptr<engine::Executor> executor,
                         const scheduler::SyntheticLoad& load, bool plan_ahead) {
  return RunServing(*executor, load, plan_ahead);
}

ServingReport RunServing(engine::Executor& executor, const scheduler::SyntheticLoad& load,
                         bool plan_ahead) {
  const int32_t vocab = executor.limits().vocab;
  Watched watched(executor);
  const std::vector<scheduler::SimulatedRequest> requests = scheduler::MakeLoad(load);
  Recorder recorder(static_cast<int64_t>(requests.size()));
  server::EngineLoop loop(std::make_unique<Borrowed>(watched), OptionsFor(load, plan_ahead));
  ServingReport report;
  const auto begin = Clock::now();
  for (size_t i = 0; i < requests.size(); ++i) {
    std::this_thread::sleep_until(begin + std::chrono::microseconds(requests[i].arrival_us));
    server::GenerationRequest request = scheduler::ToGenerationRequest(requests[i], i);
    for (engine::TokenId& token : request.prompt) token %= vocab;
    request.id = loop.NextId();
    report.prompt_tokens += static_cast<int64_t>(request.prompt.size());
    absl::Status taken = loop.Submit(std::move(request), recorder.Sink());
    if (!taken.ok()) recorder.Fail(std::move(taken));
  }
  recorder.Wait();
  report.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  report.requests = static_cast<int64_t>(requests.size());
  const server::EngineStats stats = loop.Stats();
  report.steps = stats.steps;
  report.steps_ahead = stats.steps_ahead;
  report.starved_share = watched.starved_seconds() / report.seconds;
  report.host_share = stats.between_seconds / report.seconds + report.starved_share;
  recorder.Fill(&report);
  return report;
}

std::string ServingReport::ToJson(const std::string& name) const {
  return absl::StrFormat(
      "{\"name\": \"%s\", \"requests\": %d, \"failed\": %d, \"prompt_tokens\": %d, "
      "\"output_tokens\": %d, \"seconds\": %.3f, \"output_tok_s\": %.1f, \"first_token_ms_p50\": "
      "%.2f, \"first_token_ms_p99\": %.2f, \"between_tokens_ms_p50\": %.2f, "
      "\"between_tokens_ms_p99\": %.2f, \"steps\": %d, \"steps_ahead\": %d, \"host_share\": %.4f, "
      "\"starved_share\": %.4f}",
      name, requests, failed, prompt_tokens, output_tokens, seconds,
      static_cast<double>(output_tokens) / seconds, first_token_ms_p50, first_token_ms_p99,
      between_tokens_ms_p50, between_tokens_ms_p99, steps, steps_ahead, host_share, starved_share);
}

}  // namespace heddle::test
