#include <algorithm>
#include <chrono>
#include <set>
#include <system_error>
#include <utility>

#include "base/message.h"
#include "server/adapters/adapter_names.h"
#include "server/adapters/adapter_registry.h"
#include "server/request/api_error.h"

namespace heddle::server {
namespace {

namespace fs = std::filesystem;

}  // namespace

std::string_view AdapterStateName(AdapterState state) {
  switch (state) {
    case AdapterState::kKnown:
      return "known";
    case AdapterState::kLoading:
      return "loading";
    case AdapterState::kReady:
      return "ready";
    case AdapterState::kFailed:
      break;
  }
  return "failed";
}

absl::Status AdapterRegistry::FailureOf(std::string_view name, const Entry& entry) {
  return WithCode(
      absl::InvalidArgumentError(base::StrCat("the adapter ", base::Quote(name),
                                              " cannot be used: ", MessageOf(entry.failure))),
      "adapter_failed");
}

AdapterInfo AdapterRegistry::InfoOf(std::string_view name, const Entry& entry) {
  AdapterInfo info;
  info.name = std::string(name);
  info.path = entry.path.string();
  info.index = entry.index;
  info.state = entry.state;
  info.id = entry.id;
  if (entry.id != engine::AdapterId{}) info.digest = HexText(entry.digest);
  info.rank = entry.summary.max_rank;
  info.bytes = entry.image_bytes;
  info.pinned = entry.pinned || entry.fixed;
  info.fixed = entry.fixed;
  info.added = entry.added;
  if (entry.state == AdapterState::kFailed) info.failure = std::string(MessageOf(entry.failure));
  return info;
}

std::vector<AdapterInfo> AdapterRegistry::Known() const {
  std::lock_guard lock(mutex_);
  std::vector<AdapterInfo> infos;
  for (const auto& [name, entry] : entries_) infos.push_back(InfoOf(name, entry));
  return infos;
}

// REQUIRES: mutex_ is held.
void AdapterRegistry::NoteWanted() {
  wanted_changed_at_ =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

bool AdapterRegistry::IsHidden(std::string_view name) const {
  std::lock_guard lock(mutex_);
  return hidden_.contains(name);
}

std::vector<AdapterInfo> AdapterRegistry::List(bool* cut) {
  std::vector<AdapterInfo> infos = Known();
  std::error_code error;
  size_t seen = 0;
  *cut = infos.size() > kMaxListed;
  if (!options_.root.empty()) {
    fs::directory_iterator it(options_.root, fs::directory_options::skip_permission_denied, error);
    const size_t num_known = infos.size();
    for (; !error && it != fs::directory_iterator(); it.increment(error)) {
      std::string name = it->path().filename().string();
      if (name.ends_with(kGgufEnd)) name.resize(name.size() - kGgufEnd.size());
      if (!IsFolderAdapterName(name) || IsHidden(name)) continue;
      const auto known_end = infos.begin() + static_cast<std::ptrdiff_t>(num_known);
      const auto known = std::lower_bound(
          infos.begin(), known_end, name,
          [](const AdapterInfo& info, const std::string& wanted) { return info.name < wanted; });
      if (known != known_end && known->name == name) continue;
      if (infos.size() >= kMaxListed || ++seen > 2 * kMaxListed) {
        *cut = true;
        break;
      }
      if (!Stat(it->path(), /*in_root=*/true).ok()) continue;
      AdapterInfo info;
      info.name = name;
      info.path = it->path().string();
      info.index = -1;
      infos.push_back(std::move(info));
    }
  }
  std::sort(infos.begin(), infos.end(),
            [](const AdapterInfo& a, const AdapterInfo& b) { return a.name < b.name; });
  if (infos.size() > kMaxListed) infos.resize(kMaxListed);
  return infos;
}

absl::StatusOr<AdapterInfo> AdapterRegistry::Info(std::string_view name) const {
  std::lock_guard lock(mutex_);
  const auto found = entries_.find(name);
  if (found == entries_.end())
    return absl::NotFoundError(base::StrCat("there is no adapter ", base::Quote(name)));
  return InfoOf(found->first, found->second);
}

absl::StatusOr<std::string> AdapterRegistry::NameAt(int64_t index) const {
  std::lock_guard lock(mutex_);
  for (const auto& [name, entry] : entries_) {
    if (entry.index == index) return name;
  }
  return absl::NotFoundError(base::StrCat("there is no adapter with the number ", index));
}

std::vector<std::string> AdapterRegistry::NamesOf(const std::vector<engine::AdapterId>& ids) const {
  const std::set<engine::AdapterId> wanted(ids.begin(), ids.end());
  std::vector<std::string> names;
  std::lock_guard lock(mutex_);
  for (const auto& [name, entry] : entries_) {
    if (entry.id != engine::AdapterId{} && wanted.contains(entry.id)) names.push_back(name);
  }
  return names;
}

AdapterFigures AdapterRegistry::figures() const {
  std::lock_guard lock(mutex_);
  AdapterFigures figures;
  figures.known = static_cast<int64_t>(entries_.size());
  for (const auto& [name, entry] : entries_) {
    figures.loading += entry.state == AdapterState::kLoading ? 1 : 0;
    figures.failed += entry.state == AdapterState::kFailed ? 1 : 0;
    if (!entry.waiters.empty() && figures.wanted.size() < AdapterFigures::kMaxNamed) {
      figures.wanted.push_back(name);
    }
  }
  figures.wanted_changed_at = wanted_changed_at_;
  figures.in_memory = static_cast<int64_t>(images_.size());
  figures.host_bytes = images_.used_bytes();
  figures.host_bytes_limit = images_.max_bytes();
  figures.evictions = images_.evictions();
  figures.loads = loads_;
  figures.failed_loads = failed_loads_;
  figures.waiting = static_cast<int64_t>(waits_.size()) + num_works_;
  return figures;
}

}  // namespace heddle::server
