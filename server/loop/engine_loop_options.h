// Options of the engine loop, and the scheduler's options that follow from it and from an
// executor's limits. Plain data.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "engine/executor.h"
#include "scheduler/scheduler_types.h"
#include "server/generation.h"
#include "server/loop/speculation_options.h"

namespace heddle::server {

struct EngineLoopOptions {
  // The queue: limits on the requests that wait for their first step, on their prompt tokens (0: no
  // limit; one request is always taken), and on the time that one may wait (0: no limit).
  int32_t max_queue = 256;
  int64_t max_queue_tokens = 0;
  int64_t max_queue_us = 0;
  int32_t max_step_tokens = 0;  // rows per step; 0: what the executor takes
  // Limits prompts to the part of a step that lets running streams get a token this often; 0: no
  // limit.
  int64_t target_inter_token_us = scheduler::kAutomaticTarget;
  bool prefix_cache = true;
  scheduler::PolicyKind policy = scheduler::PolicyKind::kFcfs;
  int64_t starvation_us = 60'000'000;  // a longer wait goes first under every policy
  int64_t max_lead_us = 20'000;        // of a client before others; 0: not told apart
  SpeculationOptions speculation;
  // Told once why the drafter beside the model has turned itself off; on the loop's thread.
  std::function<void(const std::string&)> on_draft_failure;
  bool plan_ahead = true;  // before tokens are known, if the executor takes more plans
};

// The options of the loop's scheduler; also for planning without a loop.
scheduler::SchedulerOptions SchedulerOptionsFor(const engine::ExecutorLimits& limits,
                                                const EngineLoopOptions& options);

// The joins that branches of a model can have on a server with these limits.
struct BranchSupport {
  std::string no_concurrent;  // why they cannot be joined side by side; empty: they can
  std::string no_workers;     // why they cannot see each other while they grow; empty: they can
  int32_t max_joined_context = 0;  // positions of a context whose parts lie side by side, at least
};
BranchSupport BranchSupportOf(const engine::ExecutorLimits& limits);

// Overwrites what the scheduler counts of the loop's statistics.
void TakeSchedulerStats(const scheduler::SchedulerStats& now, EngineStats* stats);

}  // namespace heddle::server
