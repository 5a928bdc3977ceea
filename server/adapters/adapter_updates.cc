// Changes that operators make to the registry at run time.
#include <algorithm>
#include <memory>
#include <system_error>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "server/adapters/adapter_errors.h"
#include "server/adapters/adapter_names.h"
#include "server/adapters/adapter_registry.h"

namespace heddle::server {
namespace {

namespace fs = std::filesystem;

}  // namespace

absl::StatusOr<fs::path> AdapterRegistry::PathInRoot(const fs::path& path) const {
  if (options_.root.empty()) {
    return absl::PermissionDeniedError(
        "adapters are loaded from one folder only, and this server was started without --lora-dir");
  }
  const fs::path whole = (path.is_absolute() ? path : options_.root / path).lexically_normal();
  std::error_code error;
  const fs::path real = fs::weakly_canonical(whole, error);
  const fs::path root = fs::weakly_canonical(options_.root, error);
  const fs::path relative = real.lexically_relative(root);
  if (error || relative.empty() || *relative.begin() == ".." || relative == ".") {
    return absl::PermissionDeniedError(
        base::StrCat("the path ", base::Quote(path.string()), " is not within --lora-dir"));
  }
  return real;
}

// REQUIRES: mutex_ is held.
absl::Status AdapterRegistry::CheckLoad(const std::string& name, bool replace) const {
  const auto found = entries_.find(name);
  if (found != entries_.end() && (found->second.added || found->second.fixed) && !replace) {
    return WithCode(
        absl::AlreadyExistsError(base::StrCat("the adapter ", base::Quote(name),
                                              " has already been loaded; 'load_inplace' replaces "
                                              "it")),
        "adapter_exists");
  }
  if (found == entries_.end() && entries_.size() >= options_.max_names) {
    return absl::ResourceExhaustedError(
        base::StrCat(options_.max_names, " adapters are known, and no more may be"));
  }
  return absl::OkStatus();
}

void AdapterRegistry::Load(const std::string& name, const fs::path& path, bool replace, bool pinned,
                           Callback done) {
  absl::StatusOr<fs::path> real = PathInRoot(path);
  absl::Status refused = real.status();
  if (!IsAdapterName(name)) {
    refused = absl::InvalidArgumentError(
        base::StrCat(base::Quote(name), " cannot be the name of an adapter"));
  }
  if (refused.ok()) refused = Stat(*real, /*in_root=*/true).status();
  if (refused.ok()) {
    std::lock_guard lock(mutex_);
    refused = CheckLoad(name, replace);
  }
  if (refused.ok()) {
    auto addition = std::make_shared<Addition>(
        Addition{name, *std::move(real), replace, pinned, std::move(done)});
    refused = RunLater([this, addition] { LoadAddition(*addition); });
    if (refused.ok()) return;
    done = std::move(addition->done);
  }
  done(refused);
}

// Reads what Load was asked for, and makes it known.
void AdapterRegistry::LoadAddition(const Addition& addition) {
  const Clock::time_point began = options_.now();
  absl::Status result;
  {
    std::lock_guard lock(mutex_);
    result = stopping_ ? absl::UnavailableError("the server is shutting down")
                       : CheckLoad(addition.name, addition.replace);  // others may have come first
  }
  Finished finished;
  if (result.ok()) {
    const absl::StatusOr<AdapterStamp> stamp = Stat(addition.path, /*in_root=*/true);
    absl::StatusOr<Loaded> loaded =
        stamp.ok() ? ReadWithin(addition.path, /*in_root=*/true, stamp->bytes) : stamp.status();
    result = loaded.status();
    if (result.ok()) {
      std::lock_guard lock(mutex_);
      result = Add(addition, *std::move(loaded), &finished);
    }
    CountLoad(std::chrono::duration<double>(options_.now() - began).count(), result);
  }
  if (!result.ok()) finished.emplace_back(addition.done, result);
  Call(finished);
}

// REQUIRES: mutex_ is held.
absl::Status AdapterRegistry::Add(const Addition& addition, Loaded loaded, Finished* finished) {
  const std::string& name = addition.name;
  if (stopping_) return absl::UnavailableError("the server is shutting down");
  HEDDLE_RETURN_IF_ERROR(CheckLoad(name, addition.replace));
  const int64_t bytes = loaded.adapter.image->bytes();
  if (addition.pinned) HEDDLE_RETURN_IF_ERROR(CheckPinned(name, bytes));
  // The old version goes only when the new one has its place.
  const engine::AdapterId id = IdOf(loaded.digest);
  if (KeepImage(id, std::move(loaded.adapter.image)) == nullptr) return NoRoom();
  const auto found = entries_.find(name);
  Entry& entry = found != entries_.end() ? found->second : AddEntry(name);
  entry.path = addition.path;
  entry.in_root = true;
  entry.added = true;
  entry.pinned = addition.pinned;
  entry.order = ++last_number_;  // what another load of the name brings is not used
  hidden_.erase(name);
  Put(name, &entry, std::move(loaded), {id, bytes});
  entry.waiters.push_back({++last_number_, addition.done});
  Finish(name, &entry, absl::OkStatus(), finished);
  return absl::OkStatus();
}

// Pinned adapters must leave room for the largest of the others. REQUIRES: mutex_ is held.
absl::Status AdapterRegistry::CheckPinned(const std::string& name, int64_t bytes) const {
  int64_t pinned = bytes;
  for (const auto& [other, entry] : entries_) {
    if (other != name && (entry.pinned || entry.fixed)) pinned += entry.image_bytes;
  }
  const int64_t rest = std::max(bytes, largest_bytes_);
  if (pinned + rest <= images_.max_bytes()) return absl::OkStatus();
  return absl::ResourceExhaustedError(base::StrCat(
      "with this adapter the pinned ones would have ", pinned, " of the ", images_.max_bytes(),
      " bytes for adapters (--lora-host-memory), which leaves no room for another of ", rest));
}

absl::Status AdapterRegistry::Unload(std::string_view name) {
  bool in_folder = false;
  if (!options_.root.empty() && IsFolderAdapterName(name)) {
    const fs::path path = options_.root / name;
    fs::path gguf = path;
    gguf += kGgufEnd;
    in_folder = Stat(path, /*in_root=*/true).ok() || Stat(gguf, /*in_root=*/true).ok();
  }
  Finished finished;
  {
    std::lock_guard lock(mutex_);
    const auto found = entries_.find(name);
    if (found == entries_.end() && (!in_folder || hidden_.contains(name))) {
      return NoSuchAdapter(name);
    }
    const auto answers = [name](const ScaledAdapter& adapter) { return adapter.name == name; };
    if (std::any_of(base_adapters_.begin(), base_adapters_.end(), answers)) {
      return absl::InvalidArgumentError(
          base::StrCat("the base model answers with the adapter ", base::Quote(name),
                       "; set its scale to 0 first (POST /lora-adapters)"));
    }
    if (in_folder && hidden_.size() >= options_.max_names) {
      return absl::ResourceExhaustedError(
          base::StrCat(hidden_.size(), " unloaded adapters are still in --lora-dir; delete some"));
    }
    if (in_folder) hidden_.insert(std::string(name));
    if (found != entries_.end()) {
      Finish(found->first, &found->second, NoSuchAdapter(name), &finished);
      DropImage(found->first, &found->second);
      entries_.erase(found);
    }
  }
  Call(finished);
  return absl::OkStatus();
}

absl::Status AdapterRegistry::SetBaseAdapters(std::vector<ScaledAdapter> adapters) {
  std::lock_guard lock(mutex_);
  std::erase_if(adapters, [](const ScaledAdapter& adapter) { return adapter.scale == 0; });
  for (const ScaledAdapter& adapter : adapters) {
    const auto found = entries_.find(adapter.name);
    if (found == entries_.end()) return NoSuchAdapter(adapter.name);
    if (!found->second.fixed) {
      return absl::InvalidArgumentError(
          base::StrCat("the adapter ", base::Quote(adapter.name),
                       " was not given with --lora, and cannot be the base model's"));
    }
  }
  base_adapters_ = std::move(adapters);
  return absl::OkStatus();
}

std::vector<ScaledAdapter> AdapterRegistry::base_adapters() const {
  std::lock_guard lock(mutex_);
  return base_adapters_;
}

}  // namespace heddle::server
