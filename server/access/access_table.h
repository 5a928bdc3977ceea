// The keys that may use the server at the moment, with an account for each. They can be replaced
// while requests are served.
//
// A key is identified by its digest: its tenant number and, if its limits stay the same, its
// account survive a replacement of the table, wherever it is in the file. A request keeps the table
// that it began with.
// Thread-safety: all members may be called from any thread; a lock is held for moments.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "server/access/api_keys.h"
#include "server/access/key_account.h"

namespace heddle::server {

// Identifies a key, in one process and the next; never 0, which stands for a client without key. It
// is not the digest, and too little of it to guess anything by.
uint64_t TenantOf(const ApiKey& key);

class AccessTable {
 public:
  struct Entry {
    ApiKey key;
    uint64_t tenant = 0;
    std::shared_ptr<KeyAccount> account;
  };

  // A request's view of the table, from its beginning to its end.
  class Snapshot {
   public:
    // nullptr if the key is unknown. It compares with every key, each in constant time.
    const Entry* Find(std::string_view given) const;
    // nullptr if no key belongs to that tenant any more.
    const Entry* OfTenant(uint64_t tenant) const;
    bool empty() const { return entries_.empty(); }
    size_t size() const { return entries_.size(); }
    bool has_ordinary() const { return ring_.has_ordinary(); }  // some key is not an admin key

   private:
    friend class AccessTable;
    KeyRing ring_;
    std::vector<Entry> entries_;  // in the ring's order
  };

  AccessTable() : current_(std::make_shared<const Snapshot>()) {}

  std::shared_ptr<const Snapshot> current() const {
    std::lock_guard lock(mutex_);
    return current_;
  }

  void Replace(std::vector<ApiKey> keys);

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const Snapshot> current_;  // GUARDED_BY(mutex_)
};

}  // namespace heddle::server
