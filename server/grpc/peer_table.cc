#include "server/grpc/peer_table.h"

#include <charconv>
#include <string>
#include <string_view>

namespace heddle::server {

void PeerTable::Set(int fd, uint64_t peer) {
  std::lock_guard lock(mutex_);
  peer_of_fd_[fd] = peer;
}

uint64_t PeerTable::Of(const grpc::ServerContextBase& call) const {
  constexpr std::string_view kPrefix = "fd:";  // gRPC's name of a connection made from a descriptor
  const std::string name = call.peer();
  if (!name.starts_with(kPrefix)) return 0;
  int fd = -1;
  std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), fd);
  std::lock_guard lock(mutex_);
  const auto found = peer_of_fd_.find(fd);
  return found == peer_of_fd_.end() ? 0 : found->second;
}

}  // namespace heddle::server
