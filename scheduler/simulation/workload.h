// The requests of a simulated server's clients: one entry per request, from a trace or synthetic.
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
  // A model that thinks in branches: when it has written fork_at tokens, `forks` branches (0: none)
  // run, the i-th of them for (i + 1) / forks of branch_tokens; the rest of output_tokens, which do
  // not count those of branches, follows their join.
  int32_t fork_at = 0;
  int32_t forks = 0;
  int32_t branch_tokens = 0;
  bool joins_side_by_side = false;  // else they are read one behind the other
  // Prompts of a group share their first prefix_tokens (<= prompt_tokens) tokens. 0: no group.
  uint64_t prefix_group = 0;
  int32_t prefix_tokens = 0;
  uint64_t adapter = 0;       // 0: the base model
  int32_t adapter_pages = 0;  // of the pool
  // The policies' inputs, as in GenerationRequest.
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
  int32_t prefix_groups = 1;  // groups, if prefix_tokens > 0; each request joins a random one
  int32_t prefix_tokens = 0;  // in front of the prompt's own tokens
  // Each request has one of this many adapters of adapter_pages pages: the k-th most popular one
  // with a probability in proportion to 1 / k^adapter_skew (Zipf). 0: the base model.
  int32_t adapters = 0;
  int32_t adapter_pages = 1;
  double adapter_skew = 1;
  int32_t max_tokens = 1 << 24;  // longer prompts and outputs are cut to this
  uint64_t seed = 1;
};

// The requests in the order of arrival. The load is the same on every machine because it takes no
// random numbers from the standard library. REQUIRES: num_requests >= 0, means >= 1, prefix_groups
// >= 1, adapter_pages >= 1.
std::vector<SimulatedRequest> MakeLoad(const SyntheticLoad& load);

// The request as the scheduler gets it. Token ids are a hash of group and position, or of `index`
// and position behind the shared prefix, so that exactly the prefixes that the workload says are
// shared.
GenerationRequest ToGenerationRequest(const SimulatedRequest& request, uint64_t index);

}  // namespace heddle::scheduler
