// --speculate, --speculate-max and --speculative-config (vLLM's JSON), as what the engine loop
// drafts with.
#pragma once

#include "absl/status/statusor.h"
#include "config/config.h"
#include "server/loop/speculation_options.h"

namespace heddle::server {

// INVALID_ARGUMENT names the option, and the member of the JSON, and what is known.
absl::StatusOr<SpeculationOptions> ToSpeculationOptions(const config::EngineConfig& config);

}  // namespace heddle::server
