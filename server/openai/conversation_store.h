// The conversations of /v1/conversations: items that requests add to and go on from.
// Bounded by bytes and by number, as kept responses are (response_store.h): the least recently used
// goes first, and nothing outlives the process.
// Thread-safety: all members may be called from any thread; locks are held briefly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "absl/status/statusor.h"
#include "server/openai/response_store.h"

namespace heddle::server {

struct Conversation {
  std::string id;
  uint64_t tenant = 0;          // owner of the API key: others do not find it
  int64_t created = 0;          // seconds since 1970
  std::string metadata = "{}";  // JSON
  ResponseItems items{};
};

class ConversationStore {
 public:
  static constexpr size_t kMaxItems = 4096;  // of one conversation

  explicit ConversationStore(size_t max_bytes = size_t{64} << 20, size_t max_entries = 4096)
      : max_bytes_(max_bytes), max_entries_(max_entries) {}

  using Kept = std::shared_ptr<const Conversation>;

  // Adds one, or replaces one of its id. INVALID_ARGUMENT: it is larger than all may be.
  absl::Status Put(Conversation conversation);
  // nullptr if there is none of that owner. It stays as it is for its holder.
  Kept Get(std::string_view id, uint64_t tenant);
  bool Erase(std::string_view id, uint64_t tenant);

  // Changes of the present state. NOT_FOUND: there is none of that owner, or no such item;
  // INVALID_ARGUMENT: it would have too many items.
  absl::StatusOr<Kept> Append(std::string_view id, uint64_t tenant, const ResponseItems& items);
  absl::StatusOr<Kept> SetMetadata(std::string_view id, uint64_t tenant, std::string metadata);
  absl::StatusOr<Kept> EraseItem(std::string_view id, uint64_t tenant, std::string_view item_id);

 private:
  struct Place {
    Kept kept;
    size_t bytes = 0;
  };
  using Order = std::list<Place>;  // the most recently used first

  Order::iterator FindLocked(std::string_view id, uint64_t tenant);
  absl::StatusOr<Kept> PutLocked(Conversation conversation);
  void DropLocked(Order::iterator it);

  const size_t max_bytes_;
  const size_t max_entries_;
  std::mutex mutex_;
  Order order_;                                             // GUARDED_BY(mutex_)
  std::unordered_map<std::string, Order::iterator> by_id_;  // GUARDED_BY(mutex_)
  size_t bytes_ = 0;                                        // GUARDED_BY(mutex_)
};

// The error for a client whose id is none of its conversations'.
absl::Status NoSuchConversation(std::string_view id);

}  // namespace heddle::server
