// Several adapters as one: what a request with a list of adapters and scales uses.
//
// A set is composed into an image of its own, whose factors are those of all members, multiplied by
// their scales. It is identified by its members' versions and scales, whatever their order, and its
// image by its content, as that of an adapter of a file; so pages, slots and computed prompts need
// to know nothing of sets. Composed images are kept in the registry's memory as long as there is
// room, and composed again when they are asked for.
//
// A set of one member is that adapter at a scale, and is not composed.
// Thread-safety: all members may be called from any thread, and none blocks. Composing runs on the
// registry's threads.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "server/adapters/adapter_registry.h"

namespace heddle::server {

struct ScaledImage {
  std::string name;
  SharedImage image;
  float scale = 1.0f;
};

// One image for all: INVALID_ARGUMENT if there can be none, and why.
using ComposeImages = std::function<absl::StatusOr<std::shared_ptr<engine::AdapterImage>>(
    const std::vector<ScaledImage>& members)>;

class AdapterSets {
 public:
  using Callback = AdapterRegistry::Callback;

  // `registry` outlives it.
  AdapterSets(AdapterRegistry* registry, ComposeImages compose)
      : registry_(*registry), compose_(std::move(compose)) {}
  ~AdapterSets() { registry_.Stop(); }  // whose threads call back
  AdapterSets(const AdapterSets&) = delete;
  AdapterSets& operator=(const AdapterSets&) = delete;

  // Calls `done` with the adapter or the set: at once, or from another thread. Errors as
  // AdapterRegistry::Acquire, and INVALID_ARGUMENT (adapter_failed) if the members do not fit
  // together. REQUIRES: `adapters` is not empty, and Look has returned OK for each. Returns a
  // number for Cancel.
  uint64_t Acquire(std::vector<ScaledAdapter> adapters, Callback done);

  // Forgets a wait; `done` may be running just now on another thread.
  void Cancel(uint64_t wait);

 private:
  using Members = std::vector<std::pair<AdapterDigest, float>>;  // in order
  struct Wait {
    std::vector<ScaledAdapter> adapters;
    std::vector<AdapterLease> leases;  // of the first of them
    uint64_t member_wait = 0;          // the registry's number
    Callback done;
  };

  void AcquireNext(uint64_t number);
  void TakeMember(uint64_t number, absl::StatusOr<AdapterLease> lease);
  void Compose(uint64_t number, std::vector<AdapterLease> leases);
  void Finish(uint64_t number, absl::StatusOr<AdapterLease> result);

  static constexpr size_t kMaxKnownSets = 1 << 16;

  AdapterRegistry& registry_;
  const ComposeImages compose_;
  std::mutex mutex_;
  // All of the following are GUARDED_BY(mutex_).
  uint64_t last_number_ = 0;
  absl::flat_hash_map<uint64_t, Wait> waits_;
  std::map<Members, engine::AdapterId> composed_;  // the images that sets had
};

}  // namespace heddle::server
