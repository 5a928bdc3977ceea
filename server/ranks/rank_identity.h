// The things that processes must have in common to be ranks of one engine.
//
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace heddle::server {

struct RankIdentity {
  std::string token;  // a secret of the group; empty: there is none
  std::string build;
  uint64_t model_digest = 0;
  std::string isa;  // the level of the kernels: levels differ in the last bits; "cuda" for all GPUs
  std::string ucx;  // its version: what addresses and messages look like is its own affair
};

// PERMISSION_DENIED for another token, which is compared in constant time and before all else;
// FAILED_PRECONDITION that names the first field that differs, and both values.
absl::Status CheckIdentity(const RankIdentity& head, const RankIdentity& other);

// "10.0.0.7" of "ipv4:10.0.0.7:41234", as gRPC names a peer; "this process" of one without a
// socket.
std::string HostOfPeer(std::string_view peer);

// HOST:PORT of an option. IPv6 addresses are in brackets.
struct RankAddress {
  std::string host;
  uint16_t port = 0;

  std::string text() const { return host + ":" + std::to_string(port); }
};
absl::StatusOr<RankAddress> ParseRankAddress(std::string_view option, std::string_view text);
bool IsLoopbackHost(std::string_view host);

}  // namespace heddle::server
