#include "server/cli/adapter_options.h"

#include <chrono>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "base/message.h"
#include "base/status.h"
#include "engine/adapter/compose_adapters.h"
#include "server/adapters/adapter_names.h"
#include "server/adapters/disk_source.h"
#include "server/openai/model_choice.h"
#include "server/request/api_error.h"

namespace heddle::server {
namespace {

engine::AdapterTarget TargetOf(const config::Config& config, const EngineSession& session) {
  const engine::ExecutorLimits& limits = session.model.capacity.limits;
  engine::AdapterTarget target;
  target.model = &session.model.model;
  target.dtype = limits.adapter_dtype;
  target.shares = session.model.shares;
  target.page_bytes = session.model.capacity.page_bytes;
  target.rank_page_bytes = session.model.capacity.rank_page_bytes;
  target.max_rank = static_cast<int32_t>(config.max_lora_rank);
  target.max_bytes = static_cast<int64_t>(config.lora_host_memory.value);
  target.base = config.model;
  return target;
}

absl::Status CheckOptions(const config::Config& config, const EngineSession& session) {
  if (session.model.capacity.limits.adapter_slots == 0) {
    return absl::InvalidArgumentError(
        "--lora and --lora-dir: this model runs no adapters on this device");
  }
  std::error_code error;
  if (!config.lora_dir.empty() && !std::filesystem::is_directory(config.lora_dir, error)) {
    return absl::NotFoundError(
        base::StrCat("--lora-dir: ", base::Quote(config.lora_dir), " is not a folder"));
  }
  return absl::OkStatus();
}

// Loads the adapters of --lora, and has the base answer with those that have a scale.
absl::Status AddFixed(const std::vector<NamedAdapterPath>& named, AdapterRegistry* registry) {
  std::vector<ScaledAdapter> of_base;
  for (const NamedAdapterPath& adapter : named) {
    const absl::Status added = registry->AddFixed(adapter.name, adapter.path);
    if (!added.ok()) {
      return absl::Status(added.code(),
                          base::AbslView(base::StrCat("--lora ", adapter.name, "=", adapter.path,
                                                      ": ", MessageOf(added))));
    }
    if (adapter.scale.has_value()) of_base.push_back({adapter.name, *adapter.scale});
  }
  return registry->SetBaseAdapters(std::move(of_base));
}

void WarnIfUpdatesAreOpen(const config::Config& config, const Logger* log) {
  if (!config.allow_lora_updates || config.api_key.size() + config.admin_key.size() > 0 ||
      !config.api_key_file.empty()) {
    return;
  }
  log->Warning(
      "--allow-lora-updates without keys: every client may load and unload adapters; --admin-key "
      "restricts it");
}

ComposeImages Composer(const config::Config& config) {
  return [max_rank = static_cast<int32_t>(config.max_lora_rank),
          max_bytes = static_cast<int64_t>(config.lora_host_memory.value)](
             const std::vector<ScaledImage>& members) {
    std::vector<engine::AdapterShare> shares;
    shares.reserve(members.size());
    for (const ScaledImage& member : members) {
      shares.push_back({member.name, member.image.get(), member.scale});
    }
    return engine::ComposeAdapters(shares, max_rank, max_bytes);
  };
}

}  // namespace

absl::StatusOr<std::unique_ptr<AdapterRegistry>> StartAdapters(const config::Config& config,
                                                               const EngineSession& session,
                                                               const ServedModel& model,
                                                               ServerMetrics* metrics,
                                                               const Logger* log) {
  if (config.lora.empty() && config.lora_dir.empty()) {
    if (!config.allow_lora_updates) return nullptr;
    return absl::InvalidArgumentError(
        "--allow-lora-updates needs --lora-dir, within which adapters are loaded, or --lora");
  }
  HEDDLE_RETURN_IF_ERROR(CheckOptions(config, session));
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<NamedAdapterPath> named,
                          ParseAdapterOptions(config.lora));
  for (const NamedAdapterPath& adapter : named) {
    if (!IsModelName(adapter.name, model)) continue;
    return absl::InvalidArgumentError(
        base::StrCat("--lora: ", base::Quote(adapter.name), " is the name of the base model"));
  }
  WarnIfUpdatesAreOpen(config, log);
  AdapterRegistry::Options options;
  options.root = config.lora_dir;
  options.host_bytes = static_cast<int64_t>(config.lora_host_memory.value);
  options.on_load = [metrics, log](double seconds, const absl::Status& status) {
    metrics->ObserveAdapterLoad(AdapterOrigin::kDisk, seconds, status.ok());
    if (status.ok()) {
      log->Info("an adapter was loaded", {{"seconds", seconds}});
    } else {
      log->Warning("an adapter was not loaded", {{"error", std::string(MessageOf(status))}});
    }
  };
  auto registry = std::make_unique<AdapterRegistry>(
      std::move(options), std::make_unique<DiskAdapterSource>(TargetOf(config, session)));
  HEDDLE_RETURN_IF_ERROR(AddFixed(named, registry.get()));
  metrics->WatchAdapters([adapters = registry.get()] { return adapters->figures(); },
                         [adapters = registry.get()](const std::vector<engine::AdapterId>& ids) {
                           return adapters->NamesOf(ids);
                         });
  return registry;
}

std::unique_ptr<AdapterSets> MakeAdapterSets(const config::Config& config,
                                             AdapterRegistry* registry, ServerMetrics* metrics) {
  if (registry == nullptr) return nullptr;
  auto compose = [composer = Composer(config), metrics](const std::vector<ScaledImage>& members) {
    const auto began = std::chrono::steady_clock::now();
    auto image = composer(members);
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - began;
    metrics->ObserveAdapterLoad(AdapterOrigin::kComposed, spent.count(), image.ok());
    return image;
  };
  return std::make_unique<AdapterSets>(registry, std::move(compose));
}

absl::StatusOr<scheduler::AdapterUse> LoadForOneRequest(const config::Config& config,
                                                        const EngineSession& session) {
  if (config.lora.empty()) return scheduler::AdapterUse();
  HEDDLE_RETURN_IF_ERROR(CheckOptions(config, session));
  HEDDLE_ASSIGN_OR_RETURN(const std::vector<NamedAdapterPath> named,
                          ParseAdapterOptions(config.lora));
  AdapterRegistry::Options options;
  options.host_bytes = static_cast<int64_t>(config.lora_host_memory.value);
  options.threads = 0;
  AdapterRegistry registry(std::move(options),
                           std::make_unique<DiskAdapterSource>(TargetOf(config, session)));
  HEDDLE_RETURN_IF_ERROR(AddFixed(named, &registry));
  std::vector<ScaledAdapter> wanted;
  wanted.reserve(named.size());
  for (const NamedAdapterPath& adapter : named) {
    wanted.push_back({adapter.name, adapter.scale.value_or(1.0f)});
  }
  std::erase_if(wanted, [](const ScaledAdapter& adapter) { return adapter.scale == 0; });
  if (wanted.empty()) return scheduler::AdapterUse();
  AdapterSets sets(&registry, Composer(config));
  absl::StatusOr<AdapterLease> lease = absl::InternalError("the adapters were not loaded");
  sets.Acquire(std::move(wanted),
               [&lease](absl::StatusOr<AdapterLease> got) { lease = std::move(got); });
  while (registry.LoadNext()) {
  }
  HEDDLE_RETURN_IF_ERROR(lease.status());
  return scheduler::AdapterUse{lease->id, lease->scale, lease->image->pages_of_each_rank(),
                               lease->image};
}

}  // namespace heddle::server
