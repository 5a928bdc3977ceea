// Converts the user's configuration to the options of loading and of the engine loop.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "config/config.h"
#include "engine/model/load.h"
#include "server/log.h"
#include "server/loop/engine_loop.h"

namespace heddle::server {

// INVALID_ARGUMENT for an unknown kind of device. Whether the device exists is checked when the
// model is loaded.
absl::StatusOr<engine::LoadOptions> ToLoadOptions(const config::Config& config);
// For commands that describe a model on this machine without loading it: fills in the `options`
// that depend on its processor.
absl::Status DescribeForThisCpu(engine::LoadOptions* options);
EngineLoopOptions ToLoopOptions(const config::Config& config);
scheduler::PolicyKind ToPolicy(const config::EngineConfig& config);

LogLevel ToLogLevel(config::LogLevel level);

// The clients' name for the model: --served-model-name, else the folder's or file's own name.
std::string ServedModelName(const config::Config& config);

}  // namespace heddle::server
