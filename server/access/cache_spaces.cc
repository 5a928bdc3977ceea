#include "server/access/cache_spaces.h"

#include <openssl/rand.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "server/access/api_keys.h"

namespace heddle::server {

CacheSpaces::CacheSpaces(bool per_key) : per_key_(per_key), secret_(32, '\0') {
  HEDDLE_CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(secret_.data()),
                          static_cast<int>(secret_.size())) == 1,
               "the system has no random bytes");
}

uint64_t CacheSpaces::Of(uint64_t tenant, uint64_t salt, uint64_t adapter, float scale) const {
  if (!per_key_) tenant = 0;
  if (tenant == 0 && salt == 0 && adapter == 0) return 0;
  if (adapter == 0) scale = 1;
  std::string text = secret_;  // all parts have fixed sizes, so that no two texts are equal
  text.append(reinterpret_cast<const char*>(&tenant), sizeof(tenant));
  text.append(reinterpret_cast<const char*>(&salt), sizeof(salt));
  text.append(reinterpret_cast<const char*>(&adapter), sizeof(adapter));
  text.append(reinterpret_cast<const char*>(&scale), sizeof(scale));
  const auto digest = HashKey(text);
  uint64_t space = 0;
  std::memcpy(&space, digest.data(), sizeof(space));
  return std::max<uint64_t>(1, space);
}

}  // namespace heddle::server
