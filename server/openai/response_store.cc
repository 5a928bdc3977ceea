#include "server/openai/response_store.h"

#include <utility>

namespace heddle::server {
namespace {

// Items may be many and small, so their headers count.
size_t Bytes(const std::string& id, const ResponseStore::Entry& entry) {
  size_t bytes = id.size() + entry.messages.size() + entry.body.size();
  for (const ResponseItem& item : entry.items) {
    bytes += sizeof(ResponseItem) + item.id.size() + item.json.size();
  }
  return bytes;
}

}  // namespace

void ResponseStore::Put(const std::string& id, Entry entry) {
  const size_t bytes = Bytes(id, entry);
  Kept kept{id, std::make_shared<const Entry>(std::move(entry)), bytes};
  std::lock_guard lock(mutex_);
  if (auto it = by_id_.find(id); it != by_id_.end()) Drop(it->second);
  if (bytes > max_bytes_) return;
  while (!order_.empty() && (bytes_ + bytes > max_bytes_ || order_.size() >= max_entries_)) {
    Drop(std::prev(order_.end()));
  }
  bytes_ += bytes;
  order_.push_front(std::move(kept));
  by_id_[id] = order_.begin();
}

std::shared_ptr<const ResponseStore::Entry> ResponseStore::Get(std::string_view id,
                                                               uint64_t tenant) {
  std::lock_guard lock(mutex_);
  auto it = Find(id, tenant);
  if (it == order_.end()) return nullptr;
  order_.splice(order_.begin(), order_, it);
  return it->entry;
}

bool ResponseStore::Erase(std::string_view id, uint64_t tenant) {
  std::lock_guard lock(mutex_);
  auto it = Find(id, tenant);
  if (it == order_.end()) return false;
  Drop(it);
  return true;
}

size_t ResponseStore::bytes() const {
  std::lock_guard lock(mutex_);
  return bytes_;
}

ResponseStore::Order::iterator ResponseStore::Find(std::string_view id, uint64_t tenant) {
  auto it = by_id_.find(std::string(id));
  if (it == by_id_.end() || it->second->entry->tenant != tenant) return order_.end();
  return it->second;
}

void ResponseStore::Drop(Order::iterator it) {
  bytes_ -= it->bytes;
  by_id_.erase(it->id);
  order_.erase(it);
}

}  // namespace heddle::server
