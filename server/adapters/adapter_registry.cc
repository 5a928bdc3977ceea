#include "server/adapters/adapter_registry.h"

#include <pthread.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "server/adapters/adapter_names.h"
#include "server/request/api_error.h"
#include "server/retry_after.h"

namespace heddle::server {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kGguf = ".gguf";
constexpr int kMaxReads = 3;         // of files that change while they are read
constexpr size_t kMaxIds = 1 << 16;  // contents that are remembered
constexpr double kRetrySeconds = 2;  // about the time of a load

absl::Status NoSuchAdapter(std::string_view name) {
  return absl::NotFoundError(base::StrCat("there is no adapter ", base::Quote(name)));
}

absl::Status Busy(std::string_view why) {
  return WithRetryAfter(absl::UnavailableError(base::AbslView(why)), kRetrySeconds);
}

}  // namespace

AdapterRegistry::AdapterRegistry(Options options, std::unique_ptr<AdapterSource> source)
    : options_(std::move(options)), source_(std::move(source)), images_(options_.host_bytes) {
  for (int i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { RunThread(); });
}

AdapterRegistry::~AdapterRegistry() { Stop(); }

void AdapterRegistry::Stop() {
  Finished finished;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    orders_.clear();
    for (auto& [name, entry] : entries_) {
      if (entry.state == AdapterState::kLoading) entry.state = AdapterState::kKnown;
      Finish(name, &entry, absl::UnavailableError("the server is shutting down"), &finished);
    }
  }
  ordered_.notify_all();
  Call(finished);
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

absl::Status AdapterRegistry::AddFixed(const std::string& name, const fs::path& path) {
  HEDDLE_ASSIGN_OR_RETURN(Loaded loaded, ReadStable(path, /*in_root=*/false));
  std::lock_guard lock(mutex_);
  if (entries_.contains(name)) {
    return absl::AlreadyExistsError(
        base::StrCat("the adapter name ", base::Quote(name), " stands twice"));
  }
  if (!images_.MakeRoom(loaded.adapter.image->bytes())) {
    return absl::ResourceExhaustedError(base::StrCat(
        "the adapter needs ", loaded.adapter.image->bytes(), " bytes, and the memory for adapters ",
        "has ", images_.max_bytes(), " (--lora-host-memory)"));
  }
  Entry& entry = AddEntry(name);
  entry.path = path;
  entry.fixed = true;
  return Take(name, &entry, std::move(loaded));
}

absl::StatusOr<AdapterStamp> AdapterRegistry::Stat(const fs::path& path, bool in_root) const {
  return source_->Stat(path, in_root ? options_.root : fs::path());
}

// Reads an adapter whose files did not change meanwhile.
absl::StatusOr<AdapterRegistry::Loaded> AdapterRegistry::ReadStable(const fs::path& path,
                                                                    bool in_root) const {
  Loaded loaded;
  HEDDLE_ASSIGN_OR_RETURN(loaded.stamp, Stat(path, in_root));
  for (int i = 0; i < kMaxReads; ++i) {
    absl::StatusOr<engine::LoadedAdapter> adapter = source_->Load(path);
    HEDDLE_ASSIGN_OR_RETURN(AdapterStamp after, Stat(path, in_root));
    if (after == loaded.stamp) {
      HEDDLE_RETURN_IF_ERROR(adapter.status());
      loaded.adapter = *std::move(adapter);
      loaded.digest = DigestOf(*loaded.adapter.image);
      return loaded;
    }
    loaded.stamp = std::move(after);
  }
  return absl::UnavailableError("the adapter's files change while they are read");
}

bool AdapterRegistry::NeedsLook(std::string_view name) const {
  std::lock_guard lock(mutex_);
  const auto found = entries_.find(name);
  if (found == entries_.end()) return !options_.root.empty() && IsFolderAdapterName(name);
  // Fixed and added adapters change by an operator's hand only, unless they have failed.
  const Entry& entry = found->second;
  const bool watched = (entry.in_root && !entry.added) || entry.state == AdapterState::kFailed;
  return watched && entry.state != AdapterState::kLoading && options_.now() >= entry.next_look;
}

absl::Status AdapterRegistry::Look(std::string_view name) {
  if (NeedsLook(name)) {
    fs::path path = options_.root / name;
    bool in_root = true;
    bool is_new = true;
    {
      std::lock_guard lock(mutex_);
      if (const auto found = entries_.find(name); found != entries_.end()) {
        is_new = false;
        path = found->second.path;
        in_root = found->second.in_root;
      }
    }
    absl::StatusOr<AdapterStamp> stamp = Stat(path, in_root);
    if (absl::IsNotFound(stamp.status()) && is_new) {
      path += kGguf;
      stamp = Stat(path, in_root);
    }
    TakeStamp(name, path, stamp);
  }
  std::lock_guard lock(mutex_);
  const auto found = entries_.find(name);
  if (found == entries_.end()) return NoSuchAdapter(name);
  if (found->second.state == AdapterState::kFailed) return FailureOf(name, found->second);
  return absl::OkStatus();
}

// Notes what a look at the files of an adapter has found.
void AdapterRegistry::TakeStamp(std::string_view name, const fs::path& path,
                                const absl::StatusOr<AdapterStamp>& stamp) {
  std::lock_guard lock(mutex_);
  auto found = entries_.find(name);
  if (!stamp.ok()) {
    if (found == entries_.end()) return;
    Entry& entry = found->second;
    entry.next_look = options_.now() + kLookInterval;
    if (entry.fixed || entry.state == AdapterState::kLoading) return;
    DropImage(found->first, &entry);
    entries_.erase(found);
    return;
  }
  if (found == entries_.end()) {
    if (entries_.size() >= options_.max_names) return;
    Entry& entry = AddEntry(std::string(name));
    entry.path = path;
    entry.in_root = true;
    entry.stamp = *stamp;
    entry.next_look = options_.now() + kLookInterval;
    return;
  }
  Entry& entry = found->second;
  entry.next_look = options_.now() + kLookInterval;
  if (entry.stamp == *stamp || entry.state == AdapterState::kLoading) return;
  DropImage(found->first, &entry);
  entry.stamp = *stamp;
  entry.state = AdapterState::kKnown;
}

uint64_t AdapterRegistry::Acquire(std::string_view name, Callback done) {
  absl::StatusOr<AdapterLease> result = NoSuchAdapter(name);
  {
    std::lock_guard lock(mutex_);
    const auto found = entries_.find(name);
    if (found != entries_.end()) {
      Entry& entry = found->second;
      const SharedImage image =
          entry.state == AdapterState::kReady ? images_.Find(entry.id) : nullptr;
      if (image != nullptr) {
        result = AdapterLease{found->first, entry.id, image};
      } else if (entry.state == AdapterState::kFailed) {
        result = FailureOf(name, entry);
      } else if (stopping_ || waits_.size() >= options_.max_waiting) {
        result = Busy(base::StrCat(waits_.size(), " requests wait for adapters: no more may"));
      } else {
        return WaitFor(found->first, &entry, &done);
      }
    }
  }
  done(std::move(result));
  return 0;
}

// REQUIRES: mutex_ is held.
uint64_t AdapterRegistry::WaitFor(const std::string& name, Entry* entry, Callback* done) {
  if (entry->state != AdapterState::kLoading) BeginLoad(name, entry);
  const uint64_t number = ++last_number_;
  entry->waiters.push_back({number, std::move(*done)});
  waits_.emplace(number, name);
  return number;
}

// Orders a load; one that is under way is not used. REQUIRES: mutex_ is held.
void AdapterRegistry::BeginLoad(const std::string& name, Entry* entry) {
  entry->state = AdapterState::kLoading;
  entry->order = ++last_number_;
  orders_.push_back({name, entry->order});
  ordered_.notify_one();
}

void AdapterRegistry::Cancel(uint64_t wait) {
  Callback cancelled;  // freed after the lock is released
  std::lock_guard lock(mutex_);
  const auto found = waits_.find(wait);
  if (found == waits_.end()) return;
  std::vector<Waiter>& waiters = entries_.at(found->second).waiters;
  const auto waiter = std::find_if(waiters.begin(), waiters.end(),
                                   [wait](const Waiter& w) { return w.number == wait; });
  cancelled = std::move(waiter->done);
  waiters.erase(waiter);
  waits_.erase(found);
}

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

void AdapterRegistry::Load(const std::string& name, const fs::path& path, bool replace, bool pinned,
                           Callback done) {
  const absl::StatusOr<fs::path> real = PathInRoot(path);
  absl::Status refused = real.status();
  if (!IsAdapterName(name)) {
    refused = absl::InvalidArgumentError(
        base::StrCat(base::Quote(name), " cannot be the name of an adapter"));
  }
  absl::StatusOr<AdapterStamp> stamp;
  if (refused.ok()) {
    stamp = Stat(*real, /*in_root=*/true);
    refused = stamp.status();
  }
  if (refused.ok()) {
    std::lock_guard lock(mutex_);
    const auto found = entries_.find(name);
    if (found != entries_.end() && !replace) {
      refused = absl::AlreadyExistsError(
          base::StrCat("the adapter ", base::Quote(name), " has already been loaded"));
    } else if (found != entries_.end() && found->second.fixed) {
      refused = absl::InvalidArgumentError(base::StrCat(
          "the adapter ", base::Quote(name), " was given with --lora and cannot be replaced"));
    } else if (entries_.size() >= options_.max_names || waits_.size() >= options_.max_waiting) {
      refused = Busy("too many adapters are known, or wait to be loaded");
    } else {
      Entry& entry = found != entries_.end() ? found->second : AddEntry(name);
      DropImage(name, &entry);
      entry.path = *real;
      entry.in_root = true;
      entry.added = true;
      entry.pinned = pinned;
      entry.stamp = *stamp;
      BeginLoad(name, &entry);
      WaitFor(name, &entry, &done);
      return;
    }
  }
  done(refused);
}

absl::Status AdapterRegistry::Unload(std::string_view name) {
  Finished finished;
  {
    std::lock_guard lock(mutex_);
    const auto found = entries_.find(name);
    if (found == entries_.end()) return NoSuchAdapter(name);
    if (found->second.fixed) {
      return absl::InvalidArgumentError(base::StrCat(
          "the adapter ", base::Quote(name), " was given with --lora and cannot be unloaded"));
    }
    Finish(found->first, &found->second, NoSuchAdapter(name), &finished);
    DropImage(found->first, &found->second);
    entries_.erase(found);
  }
  Call(finished);
  return absl::OkStatus();
}

bool AdapterRegistry::LoadNext() {
  fs::path path;
  bool in_root = false;
  bool fits = false;
  Order order;
  {
    std::lock_guard lock(mutex_);
    if (orders_.empty() || stopping_) return false;
    order = std::move(orders_.front());
    orders_.pop_front();
    const auto found = entries_.find(order.name);
    if (found == entries_.end() || found->second.order != order.number) return true;
    path = found->second.path;
    in_root = found->second.in_root;
    fits = images_.MakeRoom(std::min(found->second.stamp.bytes, images_.max_bytes()));
  }
  const Clock::time_point began = options_.now();
  absl::StatusOr<Loaded> loaded =
      fits ? ReadStable(path, in_root)
           : Busy("the memory for adapters (--lora-host-memory) is full of those in use");
  const double seconds = std::chrono::duration<double>(options_.now() - began).count();
  absl::Status result = loaded.status();
  Finished finished;
  {
    std::lock_guard lock(mutex_);
    const auto found = entries_.find(order.name);
    if (found == entries_.end() || found->second.order != order.number || stopping_) return true;
    Entry& entry = found->second;
    if (loaded.ok()) {
      result = Take(order.name, &entry, *std::move(loaded));
    } else if (absl::IsUnavailable(result)) {
      entry.state = AdapterState::kKnown;
    } else {
      entry.state = AdapterState::kFailed;
      entry.failure = result;
    }
    entry.next_look = options_.now() + kLookInterval;
    result.ok() ? ++loads_ : ++failed_loads_;
    if (entry.state == AdapterState::kFailed) {
      Finish(order.name, &entry, FailureOf(order.name, entry), &finished);
    } else {
      Finish(order.name, &entry, result, &finished);
    }
  }
  if (options_.on_load) options_.on_load(seconds, result);
  Call(finished);
  return true;
}

// Puts a loaded adapter behind its name. REQUIRES: mutex_ is held.
absl::Status AdapterRegistry::Take(const std::string& name, Entry* entry, Loaded loaded) {
  const int64_t bytes = loaded.adapter.image->bytes();
  DropImage(name, entry);
  const engine::AdapterId id = IdOf(loaded.digest);
  if (images_.Find(id) == nullptr) {
    if (!images_.MakeRoom(bytes)) {
      entry->state = AdapterState::kKnown;
      return Busy("the memory for adapters (--lora-host-memory) is full of those in use");
    }
    loaded.adapter.image->id = id;
    images_.Keep(std::move(loaded.adapter.image));
  }
  if (entry->pinned || entry->fixed) images_.Pin(id, true);
  entry->id = id;
  entry->digest = loaded.digest;
  entry->stamp = std::move(loaded.stamp);
  entry->summary = std::move(loaded.adapter.summary);
  entry->image_bytes = bytes;
  entry->state = AdapterState::kReady;
  entry->failure = absl::OkStatus();
  return absl::OkStatus();
}

// The id of a content, which is a new one for a new content. REQUIRES: mutex_ is held.
engine::AdapterId AdapterRegistry::IdOf(const AdapterDigest& digest) {
  const auto known = ids_.find(digest);
  if (known != ids_.end()) return known->second;
  if (ids_.size() >= kMaxIds) ids_.clear();  // a new id for an old content costs a computation
  const engine::AdapterId id{++last_id_};
  ids_.emplace(digest, id);
  return id;
}

// Lets go of the image of an entry, unless another name has the same. REQUIRES: mutex_ is held.
void AdapterRegistry::DropImage(const std::string& name, Entry* entry) {
  const engine::AdapterId id = std::exchange(entry->id, engine::AdapterId{});
  if (id == engine::AdapterId{}) return;
  bool pinned = false;
  bool shared = false;
  for (const auto& [other_name, other] : entries_) {
    if (other_name == name || other.id != id) continue;
    shared = true;
    pinned = pinned || other.pinned || other.fixed;
  }
  shared ? images_.Pin(id, pinned) : images_.Drop(id);
}

// Collects the answers to those who wait for an entry: the adapter, or `status`. REQUIRES: mutex_
// is held.
void AdapterRegistry::Finish(const std::string& name, Entry* entry, const absl::Status& status,
                             Finished* finished) {
  const SharedImage image = status.ok() ? images_.Find(entry->id) : nullptr;
  for (Waiter& waiter : entry->waiters) {
    finished->emplace_back(std::move(waiter.done),
                           status.ok()
                               ? absl::StatusOr<AdapterLease>(AdapterLease{name, entry->id, image})
                               : absl::StatusOr<AdapterLease>(status));
    waits_.erase(waiter.number);
  }
  entry->waiters.clear();
}

void AdapterRegistry::Call(const Finished& finished) {
  for (const auto& [done, result] : finished) done(result);
}

// REQUIRES: mutex_ is held.
AdapterRegistry::Entry& AdapterRegistry::AddEntry(const std::string& name) {
  Entry& entry = entries_[name];
  entry.index = ++last_index_;
  return entry;
}

void AdapterRegistry::RunThread() {
  pthread_setname_np(pthread_self(), "adapters");
  while (true) {
    {
      std::unique_lock lock(mutex_);
      ordered_.wait(lock, [this] { return stopping_ || !orders_.empty(); });
      if (stopping_) return;
    }
    LoadNext();
  }
}

}  // namespace heddle::server
