// The answers of `heddle plan`: how many users fit into the memory that serve would take, what
// limits them, what the data sheet allows, and what the simulator expects.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/capacity.h"
#include "scheduler/scheduler.h"
#include "scheduler/simulation/step_time.h"
#include "server/simulation/adapter_size.h"
#include "server/simulation/report.h"

namespace heddle::server {

struct CapacityQuestion {
  engine::Capacity capacity;              // as PlanCapacity gave it to the executor
  scheduler::SchedulerOptions scheduler;  // the options of the server's loop
  scheduler::StepTimeModel machine;       // expected times, of stage 0
  scheduler::StepTimeModel peak;          // times at the data sheet's rates, of stage 0
  // The same of a pipeline's other stages, and what joins them.
  std::vector<scheduler::StepTimeModel> later_stages, later_peaks;
  scheduler::LinkTimeModel link;
  int32_t users = 0;          // concurrent users; 0: as many as fit
  int32_t prompt_tokens = 0;  // per user
  int32_t output_tokens = 0;
  // LoRA adapters, all in the pool; users have them in turn. 0: none.
  int32_t adapters = 0;
  int32_t adapter_rank = 0;
  AdapterSize adapter;
  std::vector<engine::RankMemory> ranks;  // several that share the model; empty: there is one
  bool one_rank_is_faster = false;        // than several, with the same threads
};

enum class UserLimit : uint8_t {
  kNone,       // the requested users fit
  kContext,    // not even one: prompt and answer exceed the longest sequence
  kAdapters,   // they alone do not fit
  kKvMemory,   // --kv-memory, or the machine's memory
  kBatchSeqs,  // --max-batch-seqs, or --max-step-tokens
};

struct CapacityAnswer {
  int32_t users = 0;  // requested, or as many as fit
  int32_t users_that_fit = 0;
  bool fits = false;
  UserLimit limit = UserLimit::kNone;  // limit of users_that_fit
  int64_t kv_bytes_needed = 0;         // for the requested users and adapters
  int64_t tokens_left = 0;             // that the pool holds beside the adapters; 0: none
  // For the users that are requested and fit, each at its full context.
  double peak_decode_tok_s = 0;
  bool decode_is_bandwidth = false;  // else arithmetic limits it
  double peak_prefill_tok_s = 0;     // for one prompt
  // For the same users, each asking again when it is answered. Empty (0 requests) if none fit.
  SimulationReport expected;
};

// Users fit if the pool has room for all of them at their full contexts, and the scheduler runs so
// many at a time: none is then ever preempted (tests/simulation checks the scheduler for it).
// INTERNAL if the simulation gets stuck.
absl::StatusOr<CapacityAnswer> AnswerCapacity(const CapacityQuestion& question);

std::string CapacityText(const CapacityQuestion& question, const CapacityAnswer& answer);

// One JSON object; bytes and tokens are plain numbers, times milliseconds. Keys are stable.
std::string CapacityJson(const CapacityQuestion& question, const CapacityAnswer& answer,
                         const std::vector<std::pair<std::string, std::string>>& heading);

}  // namespace heddle::server
