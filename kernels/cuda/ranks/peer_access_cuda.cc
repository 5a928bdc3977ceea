#include <cuda_runtime_api.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/ranks/apart_communicator.h"
#include "kernels/cuda/ranks/peer_group.h"
#include "kernels/cuda/ranks/rank_choice.h"

namespace heddle::kernels::cuda {

uint64_t DeviceNumber(int32_t ordinal) {
  cudaDeviceProp properties;
  if (cudaGetDeviceProperties(&properties, ordinal) != cudaSuccess) return 0;
  uint64_t halves[2];
  static_assert(sizeof(properties.uuid) == sizeof(halves));
  std::memcpy(halves, &properties.uuid, sizeof(halves));
  return halves[0] ^ halves[1];
}

bool CanReach(int32_t from, int32_t to) {
  int can = 0;
  return cudaDeviceCanAccessPeer(&can, from, to) == cudaSuccess && can != 0;
}

absl::Status OpenPeer(const DeviceInfo& own, const DeviceInfo& other) {
  const cudaError_t error = cudaDeviceEnablePeerAccess(other.ordinal, 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled)
    cudaGetLastError();  // it is not sticky: forget it
  if (error == cudaSuccess || error == cudaErrorPeerAccessAlreadyEnabled) return absl::OkStatus();
  return NoPeerAccess(own, other, cudaGetErrorString(error));
}

}  // namespace heddle::kernels::cuda
