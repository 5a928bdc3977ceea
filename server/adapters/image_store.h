// Images of adapters in the host's memory, bounded in bytes: an image that nobody uses goes when
// another needs its room, the one used longest ago first.
//
// An image is identified by its content (AdapterId); entries with the same content share it. Bytes
// count from Keep until the last user has let go of the image, whether or not it is still kept.
// Thread-safety: none; the registry's lock guards it. Images may be let go of on any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "engine/adapter/adapter_image.h"

namespace heddle::server {

using SharedImage = std::shared_ptr<const engine::AdapterImage>;

class ImageStore {
 public:
  explicit ImageStore(int64_t max_bytes)
      : max_bytes_(max_bytes), used_bytes_(std::make_shared<std::atomic<int64_t>>(0)) {}

  // nullptr: it is not here. Counts as a use.
  SharedImage Find(engine::AdapterId id);

  // Evicts until `bytes` more fit. False, with everything evicted that could be: they do not fit
  // beside what is in use.
  bool MakeRoom(int64_t bytes);

  // Keeps an image, whose id is set. REQUIRES: none with that id is here.
  SharedImage Keep(std::shared_ptr<const engine::AdapterImage> image);

  // A pinned image is not evicted.
  void Pin(engine::AdapterId id, bool pinned);

  // Lets go of an image; its users keep it.
  void Drop(engine::AdapterId id) { kept_.erase(id); }

  int64_t used_bytes() const { return *used_bytes_; }
  int64_t max_bytes() const { return max_bytes_; }
  int64_t evictions() const { return evictions_; }
  size_t size() const { return kept_.size(); }

 private:
  struct Kept {
    SharedImage image;
    uint64_t last_use = 0;
    bool pinned = false;
  };

  const int64_t max_bytes_;
  const std::shared_ptr<std::atomic<int64_t>> used_bytes_;  // outlives us with the last image
  absl::flat_hash_map<engine::AdapterId, Kept> kept_;
  uint64_t uses_ = 0;
  int64_t evictions_ = 0;
};

}  // namespace heddle::server
