// From the user's configuration to what the engine is loaded with, and how its loop runs.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "config/config.h"
#include "engine/model/load.h"
#include "server/log.h"
#include "server/loop/engine_loop.h"

namespace heddle::server {

// INVALID_ARGUMENT for a device of no known kind. Whether the device exists is found out when the
// model is loaded.
absl::StatusOr<engine::LoadOptions> ToLoadOptions(const config::Config& config);
// For commands that describe a model on this machine without loading it: `options` take on what
// depends on its processor.
absl::Status DescribeForThisCpu(engine::LoadOptions* options);
EngineLoopOptions ToLoopOptions(const config::Config& config);
scheduler::PolicyKind ToPolicy(const config::Config& config);

LogLevel ToLogLevel(const config::Config& config);

// What clients call the model: --served-model-name, else the folder's or file's own name.
std::string ServedModelName(const config::Config& config);

}  // namespace heddle::server
