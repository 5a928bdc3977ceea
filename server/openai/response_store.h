// The memory of /v1/responses: finished responses with the conversation up to and including them,
// so that a later request can name one as previous_response_id, and the items that each was made
// from.
// Bounded by bytes and by number: the least recently used goes first. A response that alone exceeds
// the bytes is not kept. Nothing outlives the process.
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
#include <vector>

namespace heddle::server {

// One item of a conversation: a message, a call, a call's result, or reasoning.
struct ResponseItem {
  std::string id;    // unique in its conversation
  std::string json;  // an object, with the id
};
using ResponseItems = std::vector<ResponseItem>;  // the oldest first

class ResponseStore {
 public:
  struct Entry {
    uint64_t tenant = 0;    // owner of the API key: others do not find it
    std::string messages;   // JSON array of chat messages, the response's own last
    std::string body;       // the answer's body
    ResponseItems items{};  // the model's input
  };

  explicit ResponseStore(size_t max_bytes = size_t{64} << 20, size_t max_entries = 4096)
      : max_bytes_(max_bytes), max_entries_(max_entries) {}

  void Put(const std::string& id, Entry entry);
  // nullptr if unknown. The entry stays valid for its holder, also after it was forgotten.
  std::shared_ptr<const Entry> Get(std::string_view id, uint64_t tenant);
  bool Erase(std::string_view id, uint64_t tenant);

  size_t bytes() const;

 private:
  struct Kept {
    std::string id;
    std::shared_ptr<const Entry> entry;
    size_t bytes = 0;
  };
  using Order = std::list<Kept>;  // the most recently used first

  Order::iterator Find(std::string_view id, uint64_t tenant);
  void Drop(Order::iterator it);

  const size_t max_bytes_;
  const size_t max_entries_;
  mutable std::mutex mutex_;
  Order order_;                                             // GUARDED_BY(mutex_)
  std::unordered_map<std::string, Order::iterator> by_id_;  // GUARDED_BY(mutex_)
  size_t bytes_ = 0;                                        // GUARDED_BY(mutex_)
};

}  // namespace heddle::server
