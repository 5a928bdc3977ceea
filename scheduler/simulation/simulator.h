// Runs the scheduler of the server, unchanged, against a workload and a machine that is only a
// formula: every step is planned and committed as in the engine loop, and time jumps by what the
// step would take. Answers "how many users fit", "which limit hurts", in moments.
//
// What it leaves out: the network, tokenizing, clients that read slowly or go away, end-of-sequence
// tokens (every answer has its full length).
// Pure and deterministic; no thread, no clock, no I/O.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/scheduler.h"
#include "scheduler/simulation/latency_histogram.h"
#include "scheduler/simulation/step_time.h"
#include "scheduler/simulation/timeline.h"
#include "scheduler/simulation/workload.h"

namespace heddle::scheduler {

struct SimulationOptions {
  SchedulerOptions scheduler;
  StepTimeModel machine;
  // Requests that may wait for their first step, and tokens of their prompts (0: any number); one
  // that arrives then is refused, as by the server. Clients, below, are not refused: they wait.
  int32_t max_queue = 1 << 24;
  int64_t max_queue_tokens = 0;
  // 0: requests arrive when they say. Else so many clients take them in their order, each the next
  // one when its last is answered.
  int32_t clients = 0;
};

enum class Outcome : uint8_t {
  kUnknown,  // the simulation has not come to it
  kDone,
  kNeverFits,  // Scheduler::Validate refused it
  kQueueFull,
  kWaitedTooLong,  // Scheduler::Expire ended it
};

// Times since the simulation began, in microseconds; valid for kDone.
struct RequestRecord {
  Outcome outcome = Outcome::kUnknown;
  double arrival_us = 0;
  double started_us = 0;      // its first step began
  double first_token_us = 0;  // 0 if it asked for none
  double done_us = 0;
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;  // of the prompt
  int32_t output_tokens = 0;  // of all branches
};

struct SimulationResult {
  std::vector<RequestRecord> requests;  // parallel to the workload
  LatencyHistogram inter_token;         // between two tokens of one branch
  Timeline timeline;
  SchedulerStats totals;  // its counters, at the end
  int64_t steps = 0;
  double busy_us = 0;  // of steps
  double end_us = 0;   // when the last answer was done
};

// INTERNAL if the scheduler got stuck or broke an invariant: a bug of it, and never of the
// workload.
absl::StatusOr<SimulationResult> Simulate(std::span<const SimulatedRequest> workload,
                                          const SimulationOptions& options);

}  // namespace heddle::scheduler
