// What clients ask of a simulated server: one entry per request, from a trace or made up.
//
// Unit: microseconds since the simulation began; tokens. Plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "scheduler/request.h"

namespace heddle::scheduler {

struct SimulatedRequest {
  int64_t arrival_us = 0;
  int32_t prompt_tokens = 1;
  int32_t output_tokens = 1;  // 0: the prompt only
  int32_t branches = 1;       // n
  // Prompts of one group begin with the same prefix_tokens (<= prompt_tokens) tokens. 0: no group.
  uint64_t prefix_group = 0;
  int32_t prefix_tokens = 0;
  // What the policies go by, as in GenerationRequest.
  int32_t priority = 0;
  int64_t deadline_us = 0;
  uint64_t workflow = 0;
  uint64_t tenant = 0;
};

enum class LengthShape : uint8_t {
  kFixed,
  kUniform,      // from half the mean to one and a half of it
  kExponential,  // many short ones
  kLognormal,    // sigma 1: many short ones and few very long ones, as chats have them
};

struct SyntheticLoad {
  int32_t num_requests = 1000;
  double requests_per_s = 0;  // Poisson arrivals; 0: all at once
  double mean_prompt_tokens = 512;
  double mean_output_tokens = 64;
  LengthShape lengths = LengthShape::kFixed;
  int32_t prefix_groups = 1;     // with prefix_tokens; each request belongs to one at random
  int32_t prefix_tokens = 0;     // in front of the prompt's own tokens
  int32_t max_tokens = 1 << 24;  // longer prompts and outputs are cut to this
  uint64_t seed = 1;
};

// In the order of arrival. The same load on every machine: it draws no number from the standard
// library. REQUIRES: num_requests >= 0, means >= 1, prefix_groups >= 1.
std::vector<SimulatedRequest> MakeLoad(const SyntheticLoad& load);

// The request as the scheduler gets it. Token ids are a hash of group and place, or of `index` and
// place behind the shared prefix, so that exactly what the workload says begins alike.
GenerationRequest ToGenerationRequest(const SimulatedRequest& request, uint64_t index);

}  // namespace heddle::scheduler
