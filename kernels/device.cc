#include "kernels/device.h"

#include <cstring>

namespace heddle::kernels {

absl::Status Device::Upload(void* to_device, const void* from_host, int64_t bytes) {
  std::memcpy(to_device, from_host, static_cast<size_t>(bytes));
  return absl::OkStatus();
}

absl::Status Device::Download(void* to_host, const void* from_device, int64_t bytes) {
  std::memcpy(to_host, from_device, static_cast<size_t>(bytes));
  return absl::OkStatus();
}

}  // namespace heddle::kernels
