// The adapters that `heddle serve` offers, from its options.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "config/config.h"
#include "server/adapters/adapter_registry.h"
#include "server/cli/engine_session.h"
#include "server/log.h"
#include "server/metrics/server_metrics.h"

namespace heddle::server {

// nullptr without --lora and --lora-dir. Loads the adapters of --lora; an error names the one at
// fault. `session`'s model, `metrics` and `log` outlive the result.
absl::StatusOr<std::unique_ptr<AdapterRegistry>> StartAdapters(const config::Config& config,
                                                               const EngineSession& session,
                                                               ServerMetrics* metrics,
                                                               const Logger* log);

}  // namespace heddle::server
