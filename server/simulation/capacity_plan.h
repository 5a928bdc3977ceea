// What `heddle plan` says: how many users fit into the memory that serve would take, what limits
// them, what the data sheet allows, and what the simulator expects.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "engine/model/capacity.h"
#include "scheduler/scheduler.h"
#include "scheduler/simulation/step_time.h"
#include "server/simulation/report.h"

namespace heddle::server {

struct CapacityQuestion {
  engine::Capacity capacity;              // as PlanCapacity gave it to the executor
  scheduler::SchedulerOptions scheduler;  // as the server's loop would have them
  scheduler::StepTimeModel machine;       // to expect
  scheduler::StepTimeModel peak;          // of the data sheet
  int32_t users = 0;                      // at a time; 0: as many as fit
  int32_t prompt_tokens = 0;              // of each
  int32_t output_tokens = 0;
};

enum class UserLimit : uint8_t {
  kNone,       // the asked-for users fit
  kContext,    // not even one: prompt and answer are longer than a sequence can be
  kKvMemory,   // --kv-memory, or the machine's memory behind it
  kBatchSeqs,  // --max-batch-seqs, or --max-step-tokens
};

struct CapacityAnswer {
  int32_t users = 0;  // asked for, or as many as fit
  int32_t users_that_fit = 0;
  bool fits = false;
  UserLimit limit = UserLimit::kNone;  // of users_that_fit
  int64_t kv_bytes_needed = 0;         // for the asked-for users
  // Of as many users as are asked for and fit, each at its full context.
  double peak_decode_tok_s = 0;
  bool decode_is_bandwidth = false;  // else arithmetic limits it
  double peak_prefill_tok_s = 0;     // of one prompt
  // Of the same users, each asking again when it is answered. Empty (0 requests) if none fit.
  SimulationReport expected;
};

// Users fit if the pool has room for all of them at their full contexts, and the scheduler runs so
// many at a time: then none is ever preempted (tests/simulation holds the scheduler to it).
// INTERNAL if the simulation gets stuck.
absl::StatusOr<CapacityAnswer> AnswerCapacity(const CapacityQuestion& question);

std::string CapacityText(const CapacityQuestion& question, const CapacityAnswer& answer);

// One JSON object; bytes and tokens are plain numbers, times milliseconds. Keys are stable.
std::string CapacityJson(const CapacityQuestion& question, const CapacityAnswer& answer,
                         const std::vector<std::pair<std::string, std::string>>& heading);

}  // namespace heddle::server
