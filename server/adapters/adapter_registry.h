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
// A name is ready when its adapter has been read and checked completely. Requests that name one
// that is not in memory wait in Acquire; whoever waits cancels the wait when its patience ends.
// Bounds: Options has the bytes in memory, the names, the waiting requests.
// Thread-safety: all members may be called from any thread. Look, List and Load read folders and
// may block on the disk; the others never do. Loading runs on the registry's own threads.
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
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/adapters/adapter_source.h"
#include "server/adapters/image_digest.h"
#include "server/adapters/image_store.h"

namespace heddle::server {

enum class AdapterState : uint8_t {
  kKnown,  // on the disk; loaded when somebody asks for it
  kLoading,
  kReady,
  kFailed,  // as it is on the disk now
};

std::string_view AdapterStateName(AdapterState state);  // "known", "loading"...

// What a request uses.
struct AdapterLease {
  std::string name;
  engine::AdapterId id{};
  SharedImage image;
};

struct AdapterInfo {
  std::string name;
  std::string path;
  int32_t index = 0;  // stays the same while the name is known
  AdapterState state = AdapterState::kKnown;
  engine::AdapterId id{};  // 0: it was never loaded
  std::string digest;      // SHA-256 in hexadecimal; empty: it was never loaded
  int32_t rank = 0;
  int64_t bytes = 0;  // of the image
  bool pinned = false;
  std::string failure;  // of kFailed
};

struct AdapterFigures {
  int64_t known = 0;  // names, of which...
  int64_t loading = 0;
  int64_t failed = 0;
  int64_t in_memory = 0;  // images
  int64_t host_bytes = 0;
  int64_t host_bytes_limit = 0;
  int64_t evictions = 0;
  int64_t loads = 0;  // that succeeded
  int64_t failed_loads = 0;
  int64_t waiting = 0;  // requests
};

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

  // Makes a name of `path` (relative to the root, or within it) known and loads it; `done` as for
  // Acquire. ALREADY_EXISTS: the name has an adapter, and `replace` is false; with `replace`, one
  // is loaded again. PERMISSION_DENIED: there is no root, or the path leads out of it.
  void Load(const std::string& name, const std::filesystem::path& path, bool replace, bool pinned,
            Callback done);

  // Forgets a name that Load added, or that was found in the folder (where it is found again when
  // somebody asks for it, unless its files are gone). Requests that use it finish. NOT_FOUND.
  absl::Status Unload(std::string_view name);

  // The names known, and those in the folder, by name; `cut` is set if there are more than shown.
  std::vector<AdapterInfo> List(bool* cut);
  // Those that are known, without a look at the disk.
  std::vector<AdapterInfo> Known() const;
  absl::StatusOr<AdapterInfo> Info(std::string_view name) const;
  // The name with that index. NOT_FOUND.
  absl::StatusOr<std::string> NameAt(int64_t index) const;
  // A name of that version; empty: it has none any more.
  std::string NameOf(engine::AdapterId id) const;

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
  struct Order {  // a load that waits
    std::string name;
    uint64_t number = 0;
  };
  struct Loaded {
    engine::LoadedAdapter adapter;
    AdapterDigest digest{};
    AdapterStamp stamp;
  };
  using Entries = std::map<std::string, Entry, std::less<>>;
  using Finished = std::vector<std::pair<Callback, absl::StatusOr<AdapterLease>>>;

  absl::StatusOr<AdapterStamp> Stat(const std::filesystem::path& path, bool in_root) const;
  absl::StatusOr<Loaded> ReadStable(const std::filesystem::path& path, bool in_root) const;
  absl::StatusOr<std::filesystem::path> PathInRoot(const std::filesystem::path& path) const;
  Entry& AddEntry(const std::string& name);
  void BeginLoad(const std::string& name, Entry* entry);
  void TakeStamp(std::string_view name, const std::filesystem::path& path,
                 const absl::StatusOr<AdapterStamp>& stamp);
  absl::Status Take(const std::string& name, Entry* entry, Loaded loaded);
  engine::AdapterId IdOf(const AdapterDigest& digest);
  void DropImage(const std::string& name, Entry* entry);
  void Finish(const std::string& name, Entry* entry, const absl::Status& status,
              Finished* finished);
  uint64_t WaitFor(const std::string& name, Entry* entry, Callback* done);
  static absl::Status FailureOf(std::string_view name, const Entry& entry);
  static AdapterInfo InfoOf(std::string_view name, const Entry& entry);
  static void Call(const Finished& finished);
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
  std::map<AdapterDigest, engine::AdapterId> ids_;
  uint64_t last_id_ = 0;
  uint64_t last_number_ = 0;  // of waits and orders
  int32_t last_index_ = -1;
  absl::flat_hash_map<uint64_t, std::string> waits_;  // the names that they are for
  int64_t loads_ = 0;
  int64_t failed_loads_ = 0;
};

}  // namespace heddle::server
