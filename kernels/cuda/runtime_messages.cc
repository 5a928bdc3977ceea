#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/cuda/runtime.h"

namespace heddle::kernels::cuda {
namespace {

std::string VersionName(int32_t version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

}  // namespace

absl::Status CheckDriverVersion(int32_t driver, int32_t built_with) {
  if (driver == 0) {
    return absl::FailedPreconditionError(
        "no NVIDIA driver was found on this machine (libcuda.so.1); install one, or run with "
        "--device cpu");
  }
  // Drivers run programs of any toolkit of their own major version.
  if (driver / 1000 < built_with / 1000) {
    return absl::FailedPreconditionError(
        absl::StrCat("the NVIDIA driver supports CUDA up to ", VersionName(driver),
                     ", and this heddle was built with CUDA ", VersionName(built_with),
                     "; update the driver, or build with an older toolkit"));
  }
  return absl::OkStatus();
}

absl::Status CheckOrdinal(int32_t ordinal, int32_t count) {
  if (ordinal >= 0 && ordinal < count) return absl::OkStatus();
  std::string valid = "CUDA_VISIBLE_DEVICES may hide them";
  if (count > 0) valid = absl::StrCat("valid are cuda:0 to cuda:", count - 1);
  return absl::NotFoundError(absl::StrCat("cuda:", ordinal, " does not exist; this process sees ",
                                          count, " CUDA device", count == 1 ? "" : "s", "; ",
                                          count == 1 ? "valid is cuda:0" : valid));
}

absl::Status CheckCapability(const DeviceInfo& info) {
  if (info.major >= Runtime::kMinMajor) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("cuda:", info.ordinal, " (", info.name, ") has compute capability ", info.major,
                   ".", info.minor, "; heddle needs ", Runtime::kMinMajor, ".0 (Ampere) or later"));
}

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
