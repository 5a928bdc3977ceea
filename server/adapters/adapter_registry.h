// The LoRA adapters that clients may name: which there are, which are in memory, and the loading of
// the others.
//
// Adapters come from three places: the command line (AddFixed), a folder in which each adapter is a
// name (Options::root; found when a request asks for it), and operators at run time (Load). The
// files of an adapter in the folder are looked at again when somebody asks for it, at most once per
// kLookInterval: what has changed is loaded as a new version under the same name, while requests
// that run keep the version they began with. A version is an AdapterId and is identified by its
// content, so that the same content has one id wherever it lies.
//
// An adapter that an operator loads is read and checked completely before its name appears or its
// old version goes. A name that an operator has unloaded stays unknown, whatever the folder has,
// until an operator loads it again.
//
// A name is ready when its adapter has been read and checked completely. Requests that name one
// that is not in memory wait in Acquire; whoever waits cancels the wait when its patience ends.
// Bounds: Options has the bytes in memory, the names, the waiting requests.
// Thread-safety: all members may be called from any thread. Look, List, Load and Unload read
// folders and may block on the disk; the others never do. Loading runs on the registry's own
// threads.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/adapters/adapter_info.h"
#include "server/adapters/adapter_names.h"
#include "server/adapters/adapter_source.h"
#include "server/adapters/image_digest.h"
#include "server/adapters/image_store.h"

namespace heddle::server {

class AdapterRegistry {
 public:
  using Clock = std::chrono::steady_clock;
  using Callback = std::function<void(absl::StatusOr<AdapterLease>)>;

  static constexpr Clock::duration kLookInterval = std::chrono::seconds(1);
  static constexpr size_t kMaxListed = 1000;  // names of a folder that List shows

  struct Options {
    std::filesystem::path root;  // folder of adapters; empty: none
    int64_t host_bytes = int64_t{4} << 30;
    int threads = 1;  // 0: the owner calls LoadNext
    size_t max_names = 100'000;
    size_t max_waiting = 4096;
    std::function<Clock::time_point()> now = Clock::now;
    // Called after each load on its thread, without a lock.
    std::function<void(double seconds, const absl::Status&)> on_load;
  };

  AdapterRegistry(Options options, std::unique_ptr<AdapterSource> source);
  ~AdapterRegistry();  // Stop()
  AdapterRegistry(const AdapterRegistry&) = delete;
  AdapterRegistry& operator=(const AdapterRegistry&) = delete;

  const std::filesystem::path& root() const { return options_.root; }

  // Adds a name whose files may lie anywhere, and loads it on this thread. ALREADY_EXISTS, or why
  // the adapter cannot be used.
  absl::Status AddFixed(const std::string& name, const std::filesystem::path& path);

  // Whether Look would ask the disk about the name.
  bool NeedsLook(std::string_view name) const;

  // Finds the name, in the folder if need be, and notices changed files. NOT_FOUND: there is no
  // such adapter. INVALID_ARGUMENT: it cannot be used, and why; it is tried again when its files
  // have changed.
  absl::Status Look(std::string_view name);

  // Calls `done` with the adapter: at once if it is in memory or cannot be used, else from another
  // thread when it has been loaded. UNAVAILABLE: too many wait, or the memory for adapters is full
  // of those in use. REQUIRES: Look has just returned OK. Returns a number for Cancel; 0: `done`
  // was called.
  uint64_t Acquire(std::string_view name, Callback done);

  // Forgets a wait; `done` may be running just now on another thread.
  void Cancel(uint64_t wait);

  // Loads the adapter at `path` (relative to the root, or within it) and then makes it known as
  // `name`, in place of what the folder has under that name; `done` as for Acquire.
  // ALREADY_EXISTS: Load or the command line has given the name, and `replace` is false.
  // PERMISSION_DENIED: there is no root, or the path leads out of it. NOT_FOUND: there is nothing.
  // RESOURCE_EXHAUSTED: a pinned one would leave no room for others, or it is larger than the
  // memory for adapters. After an error everything is as it was.
  void Load(const std::string& name, const std::filesystem::path& path, bool replace, bool pinned,
            Callback done);

  // Forgets a name until Load gives it again. Requests that use it finish. NOT_FOUND: it is not
  // known, and the folder does not have it. INVALID_ARGUMENT: the base model answers with it.
  absl::Status Unload(std::string_view name);

  // Sets the adapters with which the base model answers requests that name none, and their scales
  // other than 0. INVALID_ARGUMENT: one is not of the command line.
  absl::Status SetBaseAdapters(std::vector<ScaledAdapter> adapters);
  std::vector<ScaledAdapter> base_adapters() const;

  // An image in memory; nullptr: it is not here. Counts as a use.
  SharedImage FindImage(engine::AdapterId id);
  // Keeps an image that was made of others, as if it had been read. UNAVAILABLE: no room.
  absl::StatusOr<AdapterLease> Adopt(std::shared_ptr<engine::AdapterImage> image);
  // Runs `work` on a thread that loads adapters, in its turn, or in Stop. UNAVAILABLE: too much
  // waits, or the registry has stopped.
  absl::Status RunLater(std::function<void()> work);

  // The names known, and those in the folder, by name; `cut` is set if there are more than shown.
  std::vector<AdapterInfo> List(bool* cut);
  // Those that are known, without a look at the disk.
  std::vector<AdapterInfo> Known() const;
  absl::StatusOr<AdapterInfo> Info(std::string_view name) const;
  // The name with that index. NOT_FOUND.
  absl::StatusOr<std::string> NameAt(int64_t index) const;
  // All names of these versions, in order. Versions that were replaced or unloaded have none.
  std::vector<std::string> NamesOf(const std::vector<engine::AdapterId>& ids) const;

  AdapterFigures figures() const;

  // Runs the next load on this thread. False: none waits.
  bool LoadNext();

  // Ends the waits with UNAVAILABLE, and returns when running loads have ended. Idempotent.
  void Stop();

 private:
  struct Waiter {
    uint64_t number = 0;
    Callback done;
  };
  struct Entry {
    std::filesystem::path path;
    int32_t index = 0;
    bool in_root = false;  // its files must lie within the root
    bool fixed = false;    // of the command line
    bool added = false;    // by Load
    bool pinned = false;
    AdapterState state = AdapterState::kKnown;
    AdapterStamp stamp;  // of the files that were loaded, or failed, or are to be loaded
    uint64_t order = 0;  // of the load in progress
    engine::AdapterId id{};
    AdapterDigest digest{};
    engine::AdapterSummary summary;
    int64_t image_bytes = 0;
    absl::Status failure;
    Clock::time_point next_look;
    std::vector<Waiter> waiters;
  };
  struct Addition {  // what Load was asked for
    std::string name;
    std::filesystem::path path;
    bool replace = false;
    bool pinned = false;
    Callback done;
  };
  struct Order {  // a load of a name that is known, or other work, which waits
    std::string name;
    uint64_t number = 0;
    std::function<void()> work;
  };
  struct Loaded {
    engine::LoadedAdapter adapter;
    AdapterDigest digest{};
    AdapterStamp stamp;
  };
  struct KeptImage {
    engine::AdapterId id{};
    int64_t bytes = 0;
  };
  using Entries = std::map<std::string, Entry, std::less<>>;
  using Finished = std::vector<std::pair<Callback, absl::StatusOr<AdapterLease>>>;

  bool IsHidden(std::string_view name) const;
  absl::StatusOr<AdapterStamp> Stat(const std::filesystem::path& path, bool in_root) const;
  absl::StatusOr<Loaded> ReadStable(const std::filesystem::path& path, bool in_root) const;
  absl::StatusOr<std::filesystem::path> PathInRoot(const std::filesystem::path& path) const;
  Entry& AddEntry(const std::string& name);
  void BeginLoad(const std::string& name, Entry* entry);
  void TakeStamp(std::string_view name, const std::filesystem::path& path,
                 const absl::StatusOr<AdapterStamp>& stamp);
  absl::Status Take(const std::string& name, Entry* entry, Loaded loaded);
  void Put(const std::string& name, Entry* entry, Loaded loaded, KeptImage kept);
  absl::Status CheckLoad(const std::string& name, bool replace) const;
  absl::StatusOr<Loaded> ReadWithin(const std::filesystem::path& path, bool in_root,
                                    int64_t file_bytes);
  void LoadAddition(const Addition& addition);
  absl::Status Add(const Addition& addition, Loaded loaded, Finished* finished);
  void LoadKnown(const Order& order);
  absl::Status CheckPinned(const std::string& name, int64_t bytes) const;
  void CountLoad(double seconds, const absl::Status& result);
  engine::AdapterId IdOf(const AdapterDigest& digest);
  SharedImage KeepImage(engine::AdapterId id, std::shared_ptr<engine::AdapterImage> image);
  void DropImage(const std::string& name, Entry* entry);
  void Finish(const std::string& name, Entry* entry, const absl::Status& status,
              Finished* finished);
  uint64_t WaitFor(const std::string& name, Entry* entry, Callback* done);
  static absl::Status FailureOf(std::string_view name, const Entry& entry);
  static AdapterInfo InfoOf(std::string_view name, const Entry& entry);
  static void Call(const Finished& finished);
  void NoteWanted();
  void RunThread();

  const Options options_;
  const std::unique_ptr<AdapterSource> source_;
  std::vector<std::thread> threads_;  // used by the owner only
  mutable std::mutex mutex_;
  std::condition_variable ordered_;
  // All of the following are GUARDED_BY(mutex_).
  bool stopping_ = false;
  Entries entries_;
  ImageStore images_;
  std::deque<Order> orders_;
  int64_t num_works_ = 0;                      // of orders_, or being done
  std::set<std::string, std::less<>> hidden_;  // unloaded names that the folder has
  std::vector<ScaledAdapter> base_adapters_;
  int64_t largest_bytes_ = 0;  // of an image that was loaded
  std::map<AdapterDigest, engine::AdapterId> ids_;
  double wanted_changed_at_ = 0;  // Unix time at which a name was waited for, or no longer
  uint64_t last_id_ = 0;
  uint64_t last_number_ = 0;  // of waits and orders
  int32_t last_index_ = -1;
  absl::flat_hash_map<uint64_t, std::string> waits_;  // the names that they are for
  int64_t loads_ = 0;
  int64_t failed_loads_ = 0;
};

}  // namespace heddle::server
