// Runs requests on an executor with a scheduler, step by step and without a clock.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "base/in_flight.h"
#include "catch2/catch.hpp"
#include "engine/model/local_executor.h"
#include "scheduler/scheduler.h"

namespace heddle::test {

// Tokens and log-probabilities of each branch of each request.
using Answers = std::map<std::pair<scheduler::RequestId, int32_t>,
                         std::vector<std::pair<engine::TokenId, float>>>;

// A load of one executor: requests arrive `gap` steps apart.
class SteppedLoad {
 public:
  SteppedLoad(engine::LocalExecutor* executor, const scheduler::SchedulerOptions& options)
      : executor_(*executor), scheduler_(options), flights_(executor->max_in_flight()) {}

  void Run(const std::vector<scheduler::GenerationRequest>& requests, int gap) {
    for (const scheduler::GenerationRequest& request : requests) {
      scheduler_.Add(request, now_us_);
      for (int i = 0; i < gap; ++i) Step();
    }
    while (Step()) {
    }
  }
  const Answers& answers() const { return answers_; }
  // Pooled states of requests that ask for one.
  const std::map<scheduler::RequestId, std::vector<float>>& pooled() const { return pooled_; }
  scheduler::SchedulerStats stats() const { return scheduler_.stats(); }
  int32_t most_pages_used() const { return most_pages_used_; }
  int64_t num_ahead() const { return num_ahead_; }

 private:
  bool Step() {
    ++now_us_;
    if (flights_.empty()) {
      scheduler_.Plan(now_us_, &flights_.next());
      if (flights_.next().empty()) return false;
      Submit();
    }
    while (!flights_.full() && scheduler_.PlanAhead(now_us_, &flights_.next())) {
      Submit();
      ++num_ahead_;
    }
    REQUIRE(executor_.Wait(&result_).ok());
    flights_.Pop();
    result_.timing.swap_ns = 0;  // steps take no time here: swaps must not seem to
    std::vector<scheduler::SequenceEvent> events;
    scheduler_.Commit(result_, now_us_, &events);
    for (const scheduler::SequenceEvent& event : events) {
      if (event.pooled >= 0) pooled_[event.request] = result_.pooled.at(event.pooled).values;
      for (int32_t i = 0; i < event.num_tokens; ++i) {
        const engine::SampledToken& token = result_.tokens.at(event.token_begin + i);
        answers_[{event.request, event.branch}].emplace_back(token.token, token.logprob);
      }
    }
    return true;
  }

  void Submit() {
    most_pages_used_ = std::max(most_pages_used_, scheduler_.stats().pages_used);
    REQUIRE(executor_.Submit(flights_.next(), scheduler_.locals()).ok());
    flights_.Push();
  }

  engine::LocalExecutor& executor_;
  scheduler::Scheduler scheduler_;
  base::InFlight<engine::StepPlan> flights_;
  engine::StepResult result_;
  Answers answers_;
  std::map<scheduler::RequestId, std::vector<float>> pooled_;
  int64_t now_us_ = 0;
  int32_t most_pages_used_ = 0;
  int64_t num_ahead_ = 0;  // steps that were planned behind others
};

}  // namespace heddle::test
