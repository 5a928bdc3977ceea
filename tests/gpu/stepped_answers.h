// A fixed load of an executor, without clock and threads: its answers depend on the device alone.
// They are compared between ways to run the same steps, and between devices.
//
// The load has what steps are made of: prompts of many lengths, in chunks and beside decodes; a
// shared prefix, some of it found in the cache; three branches of a request; greedy and drawn
// answers; an adapter; drafts; and, with few pages, preemption and swaps to the host.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/adapter/adapter_image.h"
#include "engine/model/local_executor.h"
#include "scheduler/request.h"

namespace heddle::gpu {

struct Answer {
  std::vector<engine::TokenId> tokens;
  std::vector<float> logprobs;
  bool is_greedy = true;
  friend bool operator==(const Answer&, const Answer&) = default;
};
using Answers = std::map<std::pair<uint64_t, int32_t>, Answer>;  // by request and branch

struct SteppedWay {
  bool ahead = false;               // steps are planned before the last one's tokens are known
  bool few_pages = false;           // so few that sequences are preempted
  const Answers* drafts = nullptr;  // drafts are these answers, with every fourth token wrong
};

struct SteppedRun {
  Answers answers;
  int64_t steps = 0, steps_ahead = 0, preemptions = 0, swapped = 0, cached = 0, accepted = 0;
};

// An adapter of rank 4 on the first layer's MLP; nullptr where the executor takes none.
std::shared_ptr<engine::AdapterImage> SteppedAdapter(const engine::LocalExecutor& executor);

// The load's requests, with answers of 2 to `most_tokens` tokens.
std::vector<scheduler::GenerationRequest> SteppedRequests(
    const engine::ExecutorLimits& limits, const std::shared_ptr<engine::AdapterImage>& adapter,
    int32_t most_tokens);

// Runs them to their end; a failure of a step is returned.
absl::StatusOr<SteppedRun> RunSteps(engine::LocalExecutor& executor,
                                    const std::vector<scheduler::GenerationRequest>& requests,
                                    const SteppedWay& way);

struct Comparison {
  int64_t answers = 0;  // that were compared
  int64_t equal = 0;    // in all tokens
  double distance = 0;  // the largest between log-probabilities of the same place
  std::string first;    // the first difference, in words; empty: none
};
// Every token and every bit of its log-probability.
Comparison CompareExactly(const Answers& found, const Answers& wanted);
// Greedy answers, up to their first token that differs: where two tokens are about as likely,
// either may be taken, so that one's log-probability is near the other's.
Comparison CompareNearly(const Answers& found, const Answers& wanted);

}  // namespace heddle::gpu
