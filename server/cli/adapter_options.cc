#include "server/cli/adapter_options.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "server/adapters/adapter_names.h"
#include "server/adapters/disk_source.h"
#include "server/request/api_error.h"

namespace heddle::server {
namespace {

engine::AdapterTarget TargetOf(const config::Config& config, const EngineSession& session) {
  const engine::ExecutorLimits& limits = session.model.capacity.limits;
  engine::AdapterTarget target;
  target.model = &session.model.model;
  target.dtype = limits.adapter_dtype;
  target.page_bytes = limits.page_bytes;
  target.max_rank = static_cast<int32_t>(config.max_lora_rank);
  target.max_bytes = static_cast<int64_t>(config.lora_host_memory.value);
  target.base = config.model;
  return target;
}

}  // namespace

absl::StatusOr<std::unique_ptr<AdapterRegistry>> StartAdapters(const config::Config& config,
                                                               const EngineSession& session,
                                                               ServerMetrics* metrics,
                                                               const Logger* log) {
  if (config.lora.empty() && config.lora_dir.empty()) return nullptr;
  if (session.model.capacity.limits.adapter_slots == 0) {
    return absl::InvalidArgumentError(
        "--lora and --lora-dir: this model runs no adapters on this device");
  }
  std::error_code error;
  if (!config.lora_dir.empty() && !std::filesystem::is_directory(config.lora_dir, error)) {
    return absl::NotFoundError(
        base::StrCat("--lora-dir: ", base::Quote(config.lora_dir), " is not a folder"));
  }
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<NamedAdapterPath> named,
                          ParseAdapterOptions(config.lora));
  AdapterRegistry::Options options;
  options.root = config.lora_dir;
  options.host_bytes = static_cast<int64_t>(config.lora_host_memory.value);
  options.on_load = [metrics, log](double seconds, const absl::Status& status) {
    metrics->ObserveAdapterLoad(seconds, status.ok());
    if (status.ok()) {
      log->Info("an adapter was loaded", {{"seconds", seconds}});
    } else {
      log->Warning("an adapter was not loaded", {{"error", std::string(MessageOf(status))}});
    }
  };
  auto registry = std::make_unique<AdapterRegistry>(
      std::move(options), std::make_unique<DiskAdapterSource>(TargetOf(config, session)));
  for (const NamedAdapterPath& adapter : named) {
    const absl::Status added = registry->AddFixed(adapter.name, adapter.path);
    if (!added.ok()) {
      return absl::Status(added.code(),
                          base::AbslView(base::StrCat("--lora ", adapter.name, "=", adapter.path,
                                                      ": ", MessageOf(added))));
    }
  }
  metrics->WatchAdapters([adapters = registry.get()] { return adapters->figures(); });
  return registry;
}

}  // namespace heddle::server
