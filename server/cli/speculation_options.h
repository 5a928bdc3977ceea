// --speculate, --speculate-max and --speculative-config (vLLM's JSON), as what the engine loop
// drafts with.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "config/config.h"
#include "engine/executor.h"
#include "engine/model/draft_network.h"
#include "server/loop/speculation_options.h"

namespace heddle::server {

// INVALID_ARGUMENT names the option, and the member of the JSON, and what is known.
absl::StatusOr<SpeculationOptions> ToSpeculationOptions(const config::EngineConfig& config);

// The drafter with weights that is to run beside the model; empty: none. It opens its files when
// the model is loaded. One that nobody named, which merely lies beside the model, is left out if it
// does not fit; *left_out, which must live until then, says why. INVALID_ARGUMENT as above.
absl::StatusOr<engine::OpenDraft> ToOpenDraft(const config::EngineConfig& config,
                                              std::string* left_out);

// A server's drafters, for a line in its log, or why there are none, and what was left out.
// `drafter`: ModelInfo::drafter.
struct SpeculationReport {
  std::string drafters;  // empty: nothing is drafted
  std::string without;   // why; empty: nothing is missing, or nobody asked for drafts
};
SpeculationReport DescribeSpeculation(const SpeculationOptions& options,
                                      const engine::ExecutorLimits& limits,
                                      const std::string& drafter, const std::string& left_out);

}  // namespace heddle::server
