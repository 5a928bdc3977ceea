// The API keys that a server accepts. Only their SHA-256 is known: neither the key file nor the
// memory of a running server holds a key that could be used elsewhere.
//
// Key file: one key per line, `NAME SHA256 [requests_per_minute=N] [tokens_per_minute=N]
// [concurrency=N] [weight=N] [adapters=NAME[,NAME...]] [admin]`; empty lines and lines that begin
// with # are skipped. docs/security.md shows how to make a key and its digest. Thread-safety: a
// KeyRing is immutable; any thread may use it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace heddle::server {

// A limit of 0 means none.
struct KeyLimits {
  int64_t requests_per_minute = 0;
  int64_t tokens_per_minute = 0;  // prompts and answers together
  int64_t concurrency = 0;        // requests in progress

  bool operator==(const KeyLimits&) const = default;
};

struct ApiKey {
  std::string name;  // for logs
  std::array<unsigned char, 32> sha256{};
  bool admin = false;  // may see data of other clients: /debug
  KeyLimits limits;
  int32_t weight = 1;  // of its share of the machine (scheduler/client_shares.h)
  // Names of the LoRA adapters that it may use; nullptr: all.
  std::shared_ptr<const std::vector<std::string>> adapters;
};

// The digest of a key in the form of the Authorization header.
std::array<unsigned char, 32> HashKey(std::string_view key);

// Parses a key file; limits that a line does not give are those of `defaults`. INVALID_ARGUMENT
// names the line and what is wrong with it, and never quotes a digest.
absl::StatusOr<std::vector<ApiKey>> ParseKeyFile(std::string_view text, const KeyLimits& defaults);

class KeyRing {
 public:
  KeyRing() = default;
  explicit KeyRing(std::vector<ApiKey> keys) : keys_(std::move(keys)) {}

  // The index of the key `given`, or -1. It compares with every key, each in constant time.
  int Find(std::string_view given) const;

  const std::vector<ApiKey>& keys() const { return keys_; }
  bool empty() const { return keys_.empty(); }
  bool has_ordinary() const;  // some key is not an admin key

 private:
  std::vector<ApiKey> keys_;
};

}  // namespace heddle::server
