// Whether the engine's queue has room for one more request: requests, prompt tokens, and, where
// clients are told apart, each client's share of the places that are left.
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
    bool is_per_client = false;
  };

  // Where clients are told apart, none may have more than this many times the free part of the
  // queue: a lone client gets 16 places of 17, and there is always room for another (dynamic
  // thresholds, Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998).
  static constexpr int32_t kShareOfFree = 16;

  explicit QueueRoom(const Limits& limits) : limits_(limits) {}

  // RESOURCE_EXHAUSTED: there is no room for a prompt of `tokens` beside `waiting` requests with
  // `waiting_tokens`. Where clients are told apart, no more wait than have entered and not left:
  // with a total that is older than the clients' numbers, one of them could fill the whole queue.
  absl::Status Check(uint64_t client, int64_t tokens, int64_t waiting,
                     int64_t waiting_tokens) const;

  // A request of the client waits; it does no more.
  void Enter(uint64_t client);
  void Leave(uint64_t client);

 private:
  absl::Status CheckShare(uint64_t client, int64_t waiting) const;

  const Limits limits_;
  int64_t num_waiting_ = 0;                                   // if is_per_client
  absl::flat_hash_map<uint64_t, int32_t> waiting_of_client_;  // likewise
};

}  // namespace heddle::server
