// How many calls each client takes back, over all of its connections. A connection may reset a
// burst of calls (http2_guard.h), and a client that is cut off for more comes back with another
// connection and another burst. So a client that resets more calls than clients do, whatever the
// connections, is read more slowly, and connections that it opens meanwhile have a small burst.
//
// A client is an address (peer.h), and its calls over gRPC and its requests over HTTP/2 count
// together. Only connections that reset calls are delayed: those
// of others behind the same proxy go on.
// Thread-safety: all members; a lock is held for moments. Time is an argument.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>

#include "absl/container/flat_hash_map.h"
#include "server/http/http_message.h"

namespace heddle::server {

class PeerResets {
 public:
  struct Limits {
    double burst = 512;  // one connection's (Http2Guard::Limits)
    double per_second = 200;
  };
  // Clients are remembered until they have paid back; beyond this many, those who have are dropped
  // at once, and if all owe something, all are.
  static constexpr size_t kMaxPeers = 4096;
  // A connection is looked at again after this time, so that its end is noticed.
  static constexpr Clock::duration kMaxPause = std::chrono::seconds(1);

  explicit PeerResets(const Limits& limits) : limits_(limits) {}

  // Counts `resets` > 0 calls that a connection of the client took back. Returns how long that
  // connection should not be read; 0: not at all.
  Clock::duration Spend(uint64_t peer, int resets, Clock::time_point now);

  // Whether connections of the client that reset calls would be paused now.
  bool Owes(uint64_t peer, Clock::time_point now) const;

  size_t num_peers() const;

 private:
  struct Debt {
    double resets = 0;
    Clock::time_point at;
  };

  double Left(const Debt& debt, Clock::time_point now) const;

  const Limits limits_;
  mutable std::mutex mutex_;
  absl::flat_hash_map<uint64_t, Debt> debts_;  // GUARDED_BY(mutex_)
};

}  // namespace heddle::server
