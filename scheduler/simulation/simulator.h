// Runs the server's own scheduler against a workload and a machine that is only a formula: every
// step is planned and committed as in the engine loop, and time jumps by what the step would take.
// It tells in moments how many users fit and which limit is reached first.
//
// It leaves out the network, tokenizing, clients that read slowly or go away, and end-of-sequence
// tokens (every answer has its full length).
// Pure and deterministic; no thread, no clock, no I/O.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/draft_budget.h"
#include "scheduler/scheduler.h"
#include "scheduler/simulation/latency_histogram.h"
#include "scheduler/simulation/step_time.h"
#include "scheduler/simulation/timeline.h"
#include "scheduler/simulation/workload.h"

namespace heddle::scheduler {

struct SimulationOptions {
  SchedulerOptions scheduler;
  StepTimeModel machine;  // of stage 0, where the model is a pipeline
  // A pipeline's stages behind the first, scheduler.pipeline_stages - 1 of them, and what joins
  // them. Steps pass through the stages in order, scheduler.max_in_flight at a time, and links
  // have one step's rows on their way.
  std::vector<StepTimeModel> later_stages;
  LinkTimeModel link;
  // Limits on the requests that wait for their first step and on their prompt tokens (0: no limit).
  // An arrival beyond them is refused, as by the server. Clients, below, wait instead.
  int32_t max_queue = 1 << 24;
  int64_t max_queue_tokens = 0;
  // 0: requests arrive at their own times. Otherwise this many clients take them in order, each the
  // next one as soon as its last is answered.
  int32_t clients = 0;
  // Speculation: the probability that a guessed token is right if the one before it is; 0: nothing
  // is drafted. Each draft has draft_tokens guesses, of which the budget takes as many as pay.
  double draft_acceptance = 0;
  int32_t draft_tokens = 16;
};

enum class SimulatedOutcome : uint8_t {
  kUnknown,  // the simulation has not reached it
  kDone,
  kNeverFits,  // Scheduler::Validate refused it
  kQueueFull,
  kWaitedTooLong,  // Scheduler::Expire ended it
};

// Times since the simulation began, in microseconds; valid for kDone.
struct SimulatedResult {
  SimulatedOutcome outcome = SimulatedOutcome::kUnknown;
  double arrival_us = 0;
  double started_us = 0;      // its first step began
  double first_token_us = 0;  // 0 if it asked for none
  double done_us = 0;
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;  // of the prompt
  int32_t output_tokens = 0;  // over all branches
  int32_t joins = 0;          // of branches
};

struct SimulationResult {
  std::vector<SimulatedResult> requests;  // parallel to the workload
  LatencyHistogram inter_token;           // time between two tokens of one branch
  Timeline timeline;
  SchedulerStats totals;  // its counters at the end
  DraftBudgetStats drafts;
  int64_t steps = 0;
  double busy_us = 0;  // time in steps
  double end_us = 0;   // end of the last answer
};

// INTERNAL if the scheduler got stuck or broke an invariant, which is a bug of the scheduler and
// never of the workload.
absl::StatusOr<SimulationResult> Simulate(std::span<const SimulatedRequest> workload,
                                          const SimulationOptions& options);

}  // namespace heddle::scheduler
