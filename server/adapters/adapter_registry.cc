#include "server/adapters/adapter_registry.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "server/adapters/adapter_errors.h"
#include "server/adapters/adapter_names.h"

namespace heddle::server {
namespace {

namespace fs = std::filesystem;

// Where every core computes steps, a load takes at most a tenth of one: the scheduler of Linux
// gives such a thread 110 shares of 1,024.
constexpr int kLoadNice = 10;
constexpr int kMaxReads = 3;         // of files that change while they are read
constexpr size_t kMaxIds = 1 << 16;  // contents that are remembered

}  // namespace

AdapterRegistry::AdapterRegistry(Options options, std::unique_ptr<AdapterSource> source)
    : options_(std::move(options)), source_(std::move(source)), images_(options_.host_bytes) {
  for (int i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { RunThread(); });
}

AdapterRegistry::~AdapterRegistry() { Stop(); }

void AdapterRegistry::Stop() {
  Finished finished;
  std::vector<std::function<void()>> left;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    for (Order& order : orders_) {
      if (order.work) left.push_back(std::move(order.work));
    }
    orders_.clear();
    for (auto& [name, entry] : entries_) {
      if (entry.state == AdapterState::kLoading) entry.state = AdapterState::kKnown;
      Finish(name, &entry, absl::UnavailableError("the server is shutting down"), &finished);
    }
  }
  ordered_.notify_all();
  Call(finished);
  for (const auto& work : left) work();  // finds that the registry has stopped
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
  if (found == entries_.end()) {
    return !options_.root.empty() && IsFolderAdapterName(name) && !hidden_.contains(name);
  }
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
      path += kGgufEnd;
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
    if (entries_.size() >= options_.max_names || hidden_.contains(name)) return;
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
        result = AdapterLease{found->first, entry.id, 1.0f, entry.digest, image};
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
  if (entry->waiters.empty()) NoteWanted();
  entry->waiters.push_back({number, std::move(*done)});
  waits_.emplace(number, name);
  return number;
}

// Orders a load; one that is under way is not used. REQUIRES: mutex_ is held.
void AdapterRegistry::BeginLoad(const std::string& name, Entry* entry) {
  entry->state = AdapterState::kLoading;
  entry->order = ++last_number_;
  orders_.push_back({name, entry->order, nullptr});
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
  if (waiters.empty()) NoteWanted();
  waits_.erase(found);
}

// Reads an adapter, and before that makes about as much room as it takes.
absl::StatusOr<AdapterRegistry::Loaded> AdapterRegistry::ReadWithin(const fs::path& path,
                                                                    bool in_root,
                                                                    int64_t file_bytes) {
  {
    std::lock_guard lock(mutex_);
    // A file of 32-bit floats is twice as large as its image. What cannot fit displaces nobody.
    if (file_bytes / 2 > images_.max_bytes()) return TooLarge(file_bytes / 2, images_.max_bytes());
    if (!images_.MakeRoom(std::min(file_bytes, images_.max_bytes()))) return NoRoom();
  }
  return ReadStable(path, in_root);
}

bool AdapterRegistry::LoadNext() {
  Order order;
  {
    std::lock_guard lock(mutex_);
    if (orders_.empty() || stopping_) return false;
    order = std::move(orders_.front());
    orders_.pop_front();
  }
  order.work ? order.work() : LoadKnown(order);
  return true;
}

void AdapterRegistry::LoadKnown(const Order& order) {
  fs::path path;
  bool in_root = false;
  int64_t file_bytes = 0;
  {
    std::lock_guard lock(mutex_);
    const auto found = entries_.find(order.name);
    if (found == entries_.end() || found->second.order != order.number) return;
    path = found->second.path;
    in_root = found->second.in_root;
    file_bytes = found->second.stamp.bytes;
  }
  const Clock::time_point began = options_.now();
  absl::StatusOr<Loaded> loaded = ReadWithin(path, in_root, file_bytes);
  const double seconds = std::chrono::duration<double>(options_.now() - began).count();
  absl::Status result = loaded.status();
  Finished finished;
  {
    std::lock_guard lock(mutex_);
    const auto found = entries_.find(order.name);
    if (found == entries_.end() || found->second.order != order.number || stopping_) return;
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
    if (entry.state == AdapterState::kFailed) {
      Finish(order.name, &entry, FailureOf(order.name, entry), &finished);
    } else {
      Finish(order.name, &entry, result, &finished);
    }
  }
  CountLoad(seconds, result);
  Call(finished);
}

void AdapterRegistry::CountLoad(double seconds, const absl::Status& result) {
  {
    std::lock_guard lock(mutex_);
    result.ok() ? ++loads_ : ++failed_loads_;
  }
  if (options_.on_load) options_.on_load(seconds, result);
}

// Puts a loaded adapter behind its name. REQUIRES: mutex_ is held.
absl::Status AdapterRegistry::Take(const std::string& name, Entry* entry, Loaded loaded) {
  const int64_t bytes = loaded.adapter.image->bytes();
  DropImage(name, entry);
  const engine::AdapterId id = IdOf(loaded.digest);
  if (KeepImage(id, std::move(loaded.adapter.image)) == nullptr) {
    entry->state = AdapterState::kKnown;
    return NoRoom();
  }
  Put(name, entry, std::move(loaded), {id, bytes});
  return absl::OkStatus();
}

// Puts an adapter whose image is in memory behind its name. REQUIRES: mutex_ is held.
void AdapterRegistry::Put(const std::string& name, Entry* entry, Loaded loaded, KeptImage kept) {
  if (entry->id != kept.id) DropImage(name, entry);
  entry->id = kept.id;
  entry->digest = loaded.digest;
  entry->stamp = std::move(loaded.stamp);
  entry->summary = std::move(loaded.adapter.summary);
  entry->image_bytes = kept.bytes;
  largest_bytes_ = std::max(largest_bytes_, kept.bytes);
  entry->state = AdapterState::kReady;
  entry->failure = absl::OkStatus();
  images_.Pin(kept.id, std::any_of(entries_.begin(), entries_.end(), [&kept](const auto& other) {
                return other.second.id == kept.id && (other.second.pinned || other.second.fixed);
              }));
}

// The image in memory, which is `image` unless its content is here already. nullptr: there is no
// room. REQUIRES: mutex_ is held.
SharedImage AdapterRegistry::KeepImage(engine::AdapterId id,
                                       std::shared_ptr<engine::AdapterImage> image) {
  SharedImage kept = images_.Find(id);
  if (kept != nullptr) return kept;
  if (!images_.MakeRoom(image->bytes())) return nullptr;
  image->id = id;
  return images_.Keep(std::move(image));
}

SharedImage AdapterRegistry::FindImage(engine::AdapterId id) {
  std::lock_guard lock(mutex_);
  return images_.Find(id);
}

absl::StatusOr<AdapterLease> AdapterRegistry::Adopt(std::shared_ptr<engine::AdapterImage> image) {
  const AdapterDigest digest = DigestOf(*image);
  std::lock_guard lock(mutex_);
  const engine::AdapterId id = IdOf(digest);
  SharedImage kept = KeepImage(id, std::move(image));
  if (kept == nullptr) return NoRoom();
  return AdapterLease{"", id, 1.0f, digest, std::move(kept)};
}

absl::Status AdapterRegistry::RunLater(std::function<void()> work) {
  std::lock_guard lock(mutex_);
  if (stopping_) return absl::UnavailableError("the server is shutting down");
  if (num_works_ >= static_cast<int64_t>(options_.max_waiting)) {
    return Busy(base::StrCat(num_works_, " adapters are to be loaded: no more may wait"));
  }
  ++num_works_;
  orders_.push_back({"", 0, [this, work = std::move(work)] {
                       work();
                       std::lock_guard done(mutex_);
                       --num_works_;
                     }});
  ordered_.notify_one();
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
  if (!entry->waiters.empty()) NoteWanted();
  const SharedImage image = status.ok() ? images_.Find(entry->id) : nullptr;
  for (Waiter& waiter : entry->waiters) {
    finished->emplace_back(std::move(waiter.done),
                           status.ok() ? absl::StatusOr<AdapterLease>(AdapterLease{
                                             name, entry->id, 1.0f, entry->digest, image})
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
  static_cast<void>(setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kLoadNice));
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
