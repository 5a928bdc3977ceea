#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/runtime/stream.h"

namespace heddle::kernels::cuda {
namespace {

std::string VersionName(int32_t version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

std::string Gib(int64_t bytes) {
  return absl::StrFormat("%.2f GiB", static_cast<double>(bytes) / (int64_t{1} << 30));
}

}  // namespace

absl::Status CheckDriverVersion(int32_t driver, int32_t built_with) {
  if (driver == 0) {
    return absl::FailedPreconditionError(
        "no NVIDIA driver was found on this machine (libcuda.so.1); install one, give the "
        "container its GPUs (docker run --gpus all), or run with --device cpu");
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

absl::Status NoCodeFor(const DeviceInfo& info, std::string_view built_for) {
  const bool is_hopper = info.major == 9 && info.minor == 0;
  return absl::UnimplementedError(
      absl::StrCat("cuda:", info.ordinal, " (", info.name, ") has compute capability ", info.major,
                   ".", info.minor, ", and this heddle holds code for ", std::string(built_for),
                   " alone; build it with -DHEDDLE_CUDA_ARCHITECTURES=", info.major, info.minor,
                   is_hopper ? "a" : ""));
}

absl::Status OutOfDeviceMemory(const DeviceInfo& info, int64_t wanted, int64_t free_bytes,
                               int64_t own_bytes) {
  const int64_t others = info.total_bytes - free_bytes - own_bytes;
  return absl::ResourceExhaustedError(absl::StrCat(
      "cuda:", info.ordinal, " (", info.name, ") is out of memory: ", Gib(wanted), " wanted, ",
      Gib(free_bytes), " free of ", Gib(info.total_bytes), ", ", Gib(wanted - free_bytes),
      " short; this process holds ", Gib(own_bytes), ", other processes and the driver ",
      Gib(others),
      ". Use a smaller model or weight format, fewer KV pages, or a GPU of one's own."));
}

absl::Status OutOfPinnedMemory(const DeviceInfo& info, int64_t wanted) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "the host gave cuda:", info.ordinal, " (", info.name, ") no ", Gib(wanted),
      " of page-locked memory. Free some, or raise the limit of this process or container "
      "(ulimit -l, its memory limit)."));
}

// The numbers and names are those of the CUDA Runtime API, cudaError_t.
std::string AdviceFor(Error error) {
  switch (error) {
    case 2:  // cudaErrorMemoryAllocation
      return "; nvidia-smi shows which processes hold the device's memory";
    case 46:  // cudaErrorDevicesUnavailable
      return "; another process has it to itself (nvidia-smi -q -d COMPUTE shows the compute "
             "mode): "
             "end that one, take another device, or set the mode to Default";
    case 209:  // cudaErrorNoKernelImageForDevice
      return "; this heddle was built for other architectures (-DHEDDLE_CUDA_ARCHITECTURES)";
    case 214:  // cudaErrorECCUncorrectable
      return "; the device's memory is damaged: reset or replace it (nvidia-smi -q -d ECC)";
    case 802:  // cudaErrorSystemNotReady
      return "; on machines with NVSwitch, start nvidia-fabricmanager";
    case 803:  // cudaErrorSystemDriverMismatch
      return "; the driver was updated while it was loaded: restart the machine or the container";
    case 804:  // cudaErrorCompatNotSupportedOnDevice
      return "; the CUDA compatibility package is for data-center GPUs: update the driver instead";
    case 805:  // cudaErrorMpsConnectionFailed
    case 806:  // cudaErrorMpsRpcFailure
    case 807:  // cudaErrorMpsServerNotReady
    case 808:  // cudaErrorMpsMaxClientsReached
    case 809:  // cudaErrorMpsMaxConnectionsReached
      return "; see the MPS control daemon's log (nvidia-cuda-mps-control), or unset "
             "CUDA_MPS_PIPE_DIRECTORY";
    default:
      return "";
  }
}

}  // namespace heddle::kernels::cuda
