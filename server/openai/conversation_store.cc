#include "server/openai/conversation_store.h"

#include <algorithm>
#include <utility>

#include "base/message.h"
#include "base/status.h"
#include "server/request/api_error.h"

namespace heddle::server {
namespace {

size_t Bytes(const Conversation& conversation) {
  size_t bytes = sizeof(Conversation) + conversation.id.size() + conversation.metadata.size();
  for (const ResponseItem& item : conversation.items) {
    bytes += sizeof(ResponseItem) + item.id.size() + item.json.size();
  }
  return bytes;
}

}  // namespace

absl::Status NoSuchConversation(std::string_view id) {
  return WithCode(absl::NotFoundError(
                      base::StrCat("there is no conversation ", base::Quote(id),
                                   " (they are kept in memory, the longest unused goes first)")),
                  "conversation_not_found");
}

absl::Status ConversationStore::Put(Conversation conversation) {
  std::lock_guard lock(mutex_);
  return PutLocked(std::move(conversation)).status();
}

absl::StatusOr<ConversationStore::Kept> ConversationStore::PutLocked(Conversation conversation) {
  const size_t bytes = Bytes(conversation);
  if (bytes > max_bytes_ || conversation.items.size() > kMaxItems) {
    return FieldError("items", base::StrCat("a conversation may have ", kMaxItems, " items and ",
                                            max_bytes_, " bytes"));
  }
  if (auto it = by_id_.find(conversation.id); it != by_id_.end()) DropLocked(it->second);
  while (!order_.empty() && (bytes_ + bytes > max_bytes_ || order_.size() >= max_entries_)) {
    DropLocked(std::prev(order_.end()));
  }
  bytes_ += bytes;
  const std::string id = conversation.id;
  order_.push_front({std::make_shared<const Conversation>(std::move(conversation)), bytes});
  by_id_[id] = order_.begin();
  return order_.front().kept;
}

ConversationStore::Kept ConversationStore::Get(std::string_view id, uint64_t tenant) {
  std::lock_guard lock(mutex_);
  const auto it = FindLocked(id, tenant);
  if (it == order_.end()) return nullptr;
  order_.splice(order_.begin(), order_, it);
  return it->kept;
}

bool ConversationStore::Erase(std::string_view id, uint64_t tenant) {
  std::lock_guard lock(mutex_);
  const auto it = FindLocked(id, tenant);
  if (it == order_.end()) return false;
  DropLocked(it);
  return true;
}

absl::StatusOr<ConversationStore::Kept> ConversationStore::Append(std::string_view id,
                                                                  uint64_t tenant,
                                                                  const ResponseItems& items) {
  std::lock_guard lock(mutex_);
  const auto it = FindLocked(id, tenant);
  if (it == order_.end()) return NoSuchConversation(id);
  Conversation changed = *it->kept;
  changed.items.insert(changed.items.end(), items.begin(), items.end());
  return PutLocked(std::move(changed));
}

absl::StatusOr<ConversationStore::Kept> ConversationStore::SetMetadata(std::string_view id,
                                                                       uint64_t tenant,
                                                                       std::string metadata) {
  std::lock_guard lock(mutex_);
  const auto it = FindLocked(id, tenant);
  if (it == order_.end()) return NoSuchConversation(id);
  Conversation changed = *it->kept;
  changed.metadata = std::move(metadata);
  return PutLocked(std::move(changed));
}

absl::StatusOr<ConversationStore::Kept> ConversationStore::EraseItem(std::string_view id,
                                                                     uint64_t tenant,
                                                                     std::string_view item_id) {
  std::lock_guard lock(mutex_);
  const auto it = FindLocked(id, tenant);
  if (it == order_.end()) return NoSuchConversation(id);
  Conversation changed = *it->kept;
  const size_t erased = std::erase_if(
      changed.items, [item_id](const ResponseItem& item) { return item.id == item_id; });
  if (erased == 0) {
    return WithCode(absl::NotFoundError(base::StrCat("there is no item ", base::Quote(item_id))),
                    "item_not_found");
  }
  return PutLocked(std::move(changed));
}

ConversationStore::Order::iterator ConversationStore::FindLocked(std::string_view id,
                                                                 uint64_t tenant) {
  const auto it = by_id_.find(std::string(id));
  if (it == by_id_.end() || it->second->kept->tenant != tenant) return order_.end();
  return it->second;
}

void ConversationStore::DropLocked(Order::iterator it) {
  bytes_ -= it->bytes;
  by_id_.erase(it->kept->id);
  order_.erase(it);
}

}  // namespace heddle::server
