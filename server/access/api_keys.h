// The API keys that a server takes, each known by its SHA-256 only: neither the key file nor the
// memory of a running server holds one that could be used elsewhere.
//
// Key file: one key a line, `NAME SHA256 [requests_per_minute=N] [tokens_per_minute=N]
// [concurrency=N] [admin]`; empty lines and lines that begin with # are skipped. A key and its
// line's digest: docs/security.md.
// Thread-safety: a KeyRing does not change once it is made; any thread may use it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace heddle::server {

// 0: no limit.
struct KeyLimits {
  int64_t requests_per_minute = 0;
  int64_t tokens_per_minute = 0;  // of prompts and answers together
  int64_t concurrency = 0;        // requests in progress
};

struct ApiKey {
  std::string name;  // for logs
  std::array<unsigned char, 32> sha256{};
  bool admin = false;  // may see what concerns more than one client: /debug
  KeyLimits limits;
};

// The digest of a key as it stands in the Authorization header.
std::array<unsigned char, 32> HashKey(std::string_view key);

// The keys of a key file's text; a line that names no limit of a kind has that of `defaults`.
// INVALID_ARGUMENT names the line and what is wrong with it, and never quotes a digest.
absl::StatusOr<std::vector<ApiKey>> ParseKeyFile(std::string_view text, const KeyLimits& defaults);

class KeyRing {
 public:
  KeyRing() = default;
  explicit KeyRing(std::vector<ApiKey> keys) : keys_(std::move(keys)) {}

  // The number of the key `given`, from 0; -1: it is none of these. Compares with every key, each
  // in constant time.
  int Find(std::string_view given) const;

  const std::vector<ApiKey>& keys() const { return keys_; }
  bool empty() const { return keys_.empty(); }
  bool has_ordinary() const;  // any that is no admin key

 private:
  std::vector<ApiKey> keys_;
};

}  // namespace heddle::server
