#include "server/adapters/image_store.h"

#include <utility>

namespace heddle::server {

SharedImage ImageStore::Find(engine::AdapterId id) {
  const auto found = kept_.find(id);
  if (found == kept_.end()) return nullptr;
  found->second.last_use = ++uses_;
  return found->second.image;
}

bool ImageStore::MakeRoom(int64_t bytes) {
  while (used_bytes() + bytes > max_bytes_) {
    auto oldest = kept_.end();
    for (auto it = kept_.begin(); it != kept_.end(); ++it) {
      if (it->second.pinned || it->second.image.use_count() > 1) continue;
      if (oldest == kept_.end() || it->second.last_use < oldest->second.last_use) oldest = it;
    }
    if (oldest == kept_.end()) return false;
    kept_.erase(oldest);
    ++evictions_;
  }
  return true;
}

SharedImage ImageStore::Keep(std::shared_ptr<const engine::AdapterImage> image) {
  const int64_t bytes = image->bytes();
  const engine::AdapterImage* plain = image.get();
  *used_bytes_ += bytes;
  SharedImage counted(plain, [owner = std::move(image), used = used_bytes_,
                              bytes](const engine::AdapterImage*) mutable {
    owner.reset();
    *used -= bytes;
  });
  kept_[counted->id] = {counted, ++uses_, false};
  return counted;
}

void ImageStore::Pin(engine::AdapterId id, bool pinned) {
  if (const auto found = kept_.find(id); found != kept_.end()) found->second.pinned = pinned;
}

}  // namespace heddle::server
