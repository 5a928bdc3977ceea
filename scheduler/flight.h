// A step between its plan and its result, as far as Commit must know it. Plain data.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/ids.h"
#include "scheduler/cost_model.h"
#include "scheduler/sequence.h"

namespace heddle::scheduler {

// One draw of the plan.
struct FlightSample {
  Sequence* owner;
  engine::Position position;  // of the token that is drawn
  int32_t num_rows;           // rows that the draw reads
};

// The rows of the plan that report scores for a request.
struct ScoreOwner {
  RequestState* request;
  int32_t begin;
  int32_t count;
};

struct Flight {
  uint64_t step = 0;
  int64_t planned_us = 0;
  bool is_first = false;  // no other step was in flight when it was planned
  StepCost cost;
  int32_t num_swaps = 0;
  int32_t num_adapter_loads = 0;
  bool has_pools = false;
  std::vector<FlightSample> samples;  // parallel to the plan's
  std::vector<ScoreOwner> score_owners;
  std::vector<RequestState*> prompts_only;  // max_tokens = 0, finished by this step

  // Empties the flight and keeps its capacity.
  void Clear() {
    step = 0;
    planned_us = 0;
    is_first = false;
    cost = {};
    num_swaps = 0;
    num_adapter_loads = 0;
    has_pools = false;
    samples.clear();
    score_owners.clear();
    prompts_only.clear();
  }
};

}  // namespace heddle::scheduler
