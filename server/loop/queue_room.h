// Whether the engine's queue has room for one more request: requests, prompt tokens, and, where the
// policy serves tenants separately, each tenant's share of the places that are left.
//
// Thread-safety: none; guarded by the engine loop's mutex.
#pragma once

#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"

namespace heddle::server {

class QueueRoom {
 public:
  struct Limits {
    int32_t max_requests = 0;  // that wait; > 0
    int64_t max_tokens = 0;    // of their prompts; 0: any number
    bool is_per_tenant = false;
  };

  // Where tenants are served separately, no tenant may have more than this many times the free part
  // of the queue: a lone tenant gets four fifths, and there is always room for another (dynamic
  // thresholds, Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998).
  static constexpr int32_t kShareOfFree = 4;

  explicit QueueRoom(const Limits& limits) : limits_(limits) {}

  // RESOURCE_EXHAUSTED: there is no room for a prompt of `tokens` beside `waiting` requests with
  // `waiting_tokens`.
  absl::Status Check(uint64_t tenant, int64_t tokens, int64_t waiting,
                     int64_t waiting_tokens) const;

  // A request of the tenant waits; it does no more.
  void Enter(uint64_t tenant);
  void Leave(uint64_t tenant);

 private:
  absl::Status CheckShare(uint64_t tenant, int64_t waiting) const;

  const Limits limits_;
  absl::flat_hash_map<uint64_t, int32_t> waiting_of_tenant_;  // if is_per_tenant
};

}  // namespace heddle::server
