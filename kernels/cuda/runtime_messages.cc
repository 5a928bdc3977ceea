#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/cuda/runtime.h"

namespace heddle::kernels::cuda {

absl::Status OutOfDeviceMemory(const DeviceInfo& info, int64_t wanted, int64_t free_bytes,
                               int64_t own_bytes) {
  auto gib = [](int64_t bytes) {
    return absl::StrFormat("%.2f GiB", static_cast<double>(bytes) / (int64_t{1} << 30));
  };
  const int64_t others = info.total_bytes - free_bytes - own_bytes;
  return absl::ResourceExhaustedError(absl::StrCat(
      "cuda:", info.ordinal, " (", info.name, ") is out of memory: ", gib(wanted), " wanted, ",
      gib(free_bytes), " free of ", gib(info.total_bytes), ", ", gib(wanted - free_bytes),
      " short; this process holds ", gib(own_bytes), ", other processes and the driver ",
      gib(others),
      ". Use a smaller model or weight format, fewer KV pages, or a GPU of one's own."));
}

}  // namespace heddle::kernels::cuda
