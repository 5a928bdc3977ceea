// Decides who shares computed prompts: requests of the same name space of the prefix cache
// (scheduler/request.h).
//
// The speed of an answer, and the number of cached tokens that it reports, tell whether another
// client has sent a prompt with the same prefix. So if keys belong to clients that should not know
// of each other, each key has its own space; `cache_salt` divides it further.
// Thread-safety: immutable.
#pragma once

#include <cstdint>
#include <string>

namespace heddle::server {

class CacheSpaces {
 public:
  // `per_key`: keys share nothing. Spaces are numbered with a secret of this object, so that a
  // client cannot search for a salt with another client's number.
  explicit CacheSpaces(bool per_key = false);

  bool per_key() const { return per_key_; }

  // The space of a request of the tenant (0: without key), the salt (0: without salt), and the
  // adapter (its id; 0: the base model) with its scale.
  uint64_t Of(uint64_t tenant, uint64_t salt, uint64_t adapter = 0, float scale = 1) const;

 private:
  bool per_key_;
  std::string secret_;
};

}  // namespace heddle::server
