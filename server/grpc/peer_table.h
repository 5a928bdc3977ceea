// Who is behind the connections that gRPC's server was given: it sees local sockets and names them
// by their descriptors. Thread-safety: all members may be called from any thread.
#pragma once

#include <cstdint>
#include <mutex>

#include "absl/container/flat_hash_map.h"
#include "grpcpp/server_context.h"

namespace heddle::server {

class PeerTable {
 public:
  // From now on the connection with that descriptor is of the client `peer` (peer.h). An entry
  // stays until its descriptor is used again, so there are never more than descriptors.
  void Set(int fd, uint64_t peer);

  // The client of a call; 0: unknown.
  uint64_t Of(const grpc::ServerContextBase& call) const;

 private:
  mutable std::mutex mutex_;
  absl::flat_hash_map<int, uint64_t> peer_of_fd_;  // GUARDED_BY(mutex_)
};

}  // namespace heddle::server
