// A simulated request whose model thinks in branches: the requests that the front end makes of it,
// one behind the other, as server/branches/parallel_tree.h does. First the answer up to the fork;
// then its branches; then the rest behind their join.
//
// Every answer has its full length, and a drawn token is its position, as the simulator draws them.
// Pure. Thread-safety: none.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "scheduler/simulation/workload.h"

namespace heddle::scheduler {

class SimulatedFork {
 public:
  // `index`: of the request in the workload. REQUIRES: request.forks > 0, request.fork_at > 0.
  SimulatedFork(const SimulatedRequest& request, uint64_t index);

  // The requests of the next stage, without ids; none when all stages have been asked for. A stage
  // begins when all requests of the one before have ended. `join`: what comes before them.
  std::vector<GenerationRequest> NextStage(std::optional<ContextJoin>* join);
  bool is_joined() const { return stage_ > 2; }  // the last stage has begun
  // The name of every context that the stages leave.
  std::vector<ContextId> Contexts() const;

 private:
  GenerationRequest Behind(std::vector<TokenId> tokens, ContextParts parts, ContextId from,
                           uint64_t keep, int32_t max_tokens) const;
  std::vector<GenerationRequest> Branches();
  GenerationRequest Rest(std::optional<ContextJoin>* join) const;
  ContextId Name(uint64_t number) const;

  const SimulatedRequest request_;
  const uint64_t index_;
  int stage_ = 0;
  // Tokens of the stages so far: the answer up to the fork, and each branch from its beginning.
  std::vector<TokenId> tokens_;
  std::vector<std::vector<TokenId>> branches_;
  std::vector<ContextParts> parts_;  // [branches] empty: in plain order
};

}  // namespace heddle::scheduler
