// Peer access between emulated devices: all memory is the host's.
#include "kernels/cuda/ranks/peer_group.h"
#include "tests/emulate/machine.h"

namespace heddle::kernels::cuda {

absl::Status OpenPeer(const DeviceInfo& own, const DeviceInfo& other) {
  if (emulate::CurrentMachine().has_peer_access) return absl::OkStatus();
  return NoPeerAccess(own, other, "");
}

}  // namespace heddle::kernels::cuda
