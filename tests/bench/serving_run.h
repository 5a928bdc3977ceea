// A serving benchmark in one process and without a network: engine loop and scheduler against a
// synthetic load, on whatever executor it is given.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "engine/executor.h"
#include "scheduler/simulation/workload.h"

namespace heddle::test {

struct ServingReport {
  int64_t requests = 0;
  int64_t failed = 0;
  absl::Status error;  // error of the first failed request
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;
  double seconds = 0;  // from the first request to the last token
  double first_token_ms_p50 = 0, first_token_ms_p99 = 0;
  double between_tokens_ms_p50 = 0, between_tokens_ms_p99 = 0;
  int64_t steps = 0;
  int64_t steps_ahead = 0;  // those launched while the step before ran
  double host_share = 0;    // share of time in which the device had nothing to do because of the
                            // host: from a step's end to the next one's start, and starved_share
  // The part of host_share in which the host still handed a step over that the device had begun. An
  // upper bound: the device may have had launches left.
  double starved_share = 0;

  std::string ToJson(const std::string& name) const;  // one line
};

// Submits the requests when they arrive and waits for all of them. Blocks. `plan_ahead` is
// EngineLoopOptions::plan_ahead.
ServingReport RunServing(std::unique_ptr<engine::Executor> executor,
                         const scheduler::SyntheticLoad& load, bool plan_ahead = true);
// The same with an executor that several loads use, one after the other. If one fails, the executor
// may have steps that nobody waited for.
ServingReport RunServing(engine::Executor& executor, const scheduler::SyntheticLoad& load,
                         bool plan_ahead = true);

}  // namespace heddle::test
