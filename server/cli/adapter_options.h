// The adapters that `heddle serve` offers, and `heddle generate` uses, from their options.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "config/config.h"
#include "scheduler/request.h"
#include "server/adapters/adapter_registry.h"
#include "server/adapters/adapter_sets.h"
#include "server/cli/engine_session.h"
#include "server/log.h"
#include "server/metrics/server_metrics.h"
#include "server/openai/request_context.h"

namespace heddle::server {

// nullptr without --lora and --lora-dir. Loads the adapters of --lora; an error names the one at
// fault. `session`'s model, `metrics` and `log` outlive the result.
absl::StatusOr<std::unique_ptr<AdapterRegistry>> StartAdapters(const config::Config& config,
                                                               const EngineSession& session,
                                                               const ServedModel& model,
                                                               ServerMetrics* metrics,
                                                               const Logger* log);

// nullptr without a registry, which outlives the result, as `metrics` does.
std::unique_ptr<AdapterSets> MakeAdapterSets(const config::Config& config,
                                             AdapterRegistry* registry, ServerMetrics* metrics);

// Loads all adapters of --lora, at their scales (1 without one), as one that a request can use; id
// 0 without --lora.
absl::StatusOr<scheduler::AdapterUse> LoadForOneRequest(const config::Config& config,
                                                        const EngineSession& session);

}  // namespace heddle::server
