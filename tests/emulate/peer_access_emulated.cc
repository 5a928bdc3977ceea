// Peer access between emulated devices: all memory is the host's.
#include <unistd.h>

#include "kernels/cuda/ranks/apart_communicator.h"
#include "kernels/cuda/ranks/peer_group.h"
#include "kernels/cuda/ranks/rank_choice.h"
#include "tests/emulate/machine.h"

namespace heddle::kernels::cuda {

// GPUs of each process are others.
uint64_t DeviceNumber(int32_t ordinal) {
  return (static_cast<uint64_t>(getpid()) << 32) + static_cast<uint64_t>(ordinal) + 1;
}

bool CanReach(int32_t from, int32_t to) {
  const emulate::Machine& machine = emulate::CurrentMachine();
  return machine.has_peer_access && from != machine.unreachable_ordinal &&
         to != machine.unreachable_ordinal;
}

absl::Status OpenPeer(const DeviceInfo& own, const DeviceInfo& other) {
  if (emulate::CurrentMachine().opens_peers) return absl::OkStatus();
  return NoPeerAccess(own, other, "too many peers");
}

}  // namespace heddle::kernels::cuda
