// Reads a trace of requests: JSON lines such as
//   {"arrival_s": 0.25, "prompt_tokens": 812, "output_tokens": 96,
//    "prefix_group": "system-a", "prefix_tokens": 640}
// arrival_s: since the trace began, in any order. prefix_group: requests of one group share their
// first prefix_tokens tokens (both or neither). n (1 if absent): answers to the one prompt.
// adapter, adapter_pages: the LoRA adapter and the pages that it takes (both or neither).
// forks, fork_at, branch_tokens, join ("text" if absent, or "concurrent"): a model that thinks in
// branches (workload.h).
// priority, deadline_ms, workflow, tenant: as in requests; each policy uses its own.
#pragma once

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/simulation/workload.h"

namespace heddle::server {

// `text` is the file's content; messages name it `name`. INVALID_ARGUMENT with name:line, what was
// found and what is expected, for the first wrong line, and for a trace without requests.
absl::StatusOr<std::vector<scheduler::SimulatedRequest>> ReadWorkloadTrace(std::string_view text,
                                                                           std::string_view name);

}  // namespace heddle::server
