// --speculate, --speculate-max and --speculative-config (vLLM's JSON), as what the engine loop
// drafts with.
#pragma once

#include "absl/status/statusor.h"
#include "config/config.h"
#include "engine/model/draft_network.h"
#include "server/loop/speculation_options.h"

namespace heddle::server {

// INVALID_ARGUMENT names the option, and the member of the JSON, and what is known.
absl::StatusOr<SpeculationOptions> ToSpeculationOptions(const config::EngineConfig& config);

// The drafter with weights that is to run beside the model; empty: none. It opens its files when
// the model is loaded. INVALID_ARGUMENT as above.
absl::StatusOr<engine::OpenDraft> ToOpenDraft(const config::EngineConfig& config);

}  // namespace heddle::server
