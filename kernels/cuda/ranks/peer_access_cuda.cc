#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/ranks/peer_group.h"

namespace heddle::kernels::cuda {

absl::Status OpenPeer(const DeviceInfo& own, const DeviceInfo& other) {
  int can = 0;
  cudaError_t error = cudaDeviceCanAccessPeer(&can, own.ordinal, other.ordinal);
  if (error == cudaSuccess && can != 0) {
    error = cudaDeviceEnablePeerAccess(other.ordinal, 0);
    if (error == cudaErrorPeerAccessAlreadyEnabled) {
      cudaGetLastError();  // it is not sticky: forget it
      return absl::OkStatus();
    }
    if (error == cudaSuccess) return absl::OkStatus();
  }
  return NoPeerAccess(own, other, error == cudaSuccess ? "" : cudaGetErrorString(error));
}

}  // namespace heddle::kernels::cuda
