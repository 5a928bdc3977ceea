#include "server/access/access_table.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace heddle::server {

uint64_t TenantOf(const ApiKey& key) {
  uint64_t tenant = 0;
  // The number comes from a digest of the digest, because tenant numbers appear in more places than
  // digests should.
  const auto digest =
      HashKey({reinterpret_cast<const char*>(key.sha256.data()), key.sha256.size()});
  std::memcpy(&tenant, digest.data(), sizeof(tenant));
  return std::max<uint64_t>(1, tenant);
}

const AccessTable::Entry* AccessTable::Snapshot::Find(std::string_view given) const {
  const int number = given.empty() ? -1 : ring_.Find(given);
  return number < 0 ? nullptr : &entries_[static_cast<size_t>(number)];
}

const AccessTable::Entry* AccessTable::Snapshot::OfTenant(uint64_t tenant) const {
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [tenant](const Entry& entry) { return entry.tenant == tenant; });
  return found == entries_.end() ? nullptr : &*found;
}

void AccessTable::Replace(std::vector<ApiKey> keys) {
  const std::shared_ptr<const Snapshot> before = current();
  auto next = std::make_shared<Snapshot>();
  for (const ApiKey& key : keys) {
    Entry entry{key, TenantOf(key), nullptr};
    const Entry* known = before->OfTenant(entry.tenant);
    if (known == nullptr) known = next->OfTenant(entry.tenant);  // two names of one key
    entry.account = known != nullptr && known->key.limits == key.limits
                        ? known->account
                        : std::make_shared<KeyAccount>(key.limits);
    next->entries_.push_back(std::move(entry));
  }
  next->ring_ = KeyRing(std::move(keys));
  std::lock_guard lock(mutex_);
  current_ = std::move(next);
}

}  // namespace heddle::server
