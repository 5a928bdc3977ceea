// A loaded model with everything a command needs to generate with it: tokenizer, chat template,
// the engine loop, sampling defaults. `serve` and `generate` run on the same.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "config/config.h"
#include "engine/model/load.h"
#include "engine/sampling_params.h"
#include "server/cli/remote_ranks.h"
#include "server/cli/speculation_options.h"
#include "server/log.h"
#include "server/loop/engine_loop.h"
#include "server/ranks/rank_head.h"
#include "server/text/model_text_codec.h"

namespace heddle::server {

struct EngineSession {
  StartedHead ranks;  // nothing: there are no ranks in other processes
  engine::ModelInfo model;
  engine::SamplingParams defaults;
  std::unique_ptr<ModelTextCodec> codec;
  std::unique_ptr<EngineLoop> loop;
  SpeculationReport speculation;
};

// Loads tokenizer and model and starts the loop's thread. Errors name the file and what is wrong;
// unused tensors of the files are a warning.
absl::StatusOr<EngineSession> StartEngine(const config::Config& config, const Logger& log);

// One line that says what drafts and what does not, and why; none where nobody asked for drafts.
void LogSpeculation(const SpeculationReport& report, const Logger& log);

// The defaults of the model's generation_config for parameters that a request leaves out.
engine::SamplingParams SamplingDefaults(const engine::GenerationDefaults& defaults);

}  // namespace heddle::server
