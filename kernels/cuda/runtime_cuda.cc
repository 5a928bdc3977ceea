#include <cuda_runtime_api.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/cuda/runtime.h"

namespace heddle::kernels::cuda {
namespace {

std::string VersionName(int version) {  // 13000 -> 13.0
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

// No driver and an old driver both read as "error 35" without this.
absl::Status CheckDriver() {
  int driver = 0;
  cudaError_t error = cudaDriverGetVersion(&driver);
  if (error != cudaSuccess || driver == 0) {
    return absl::FailedPreconditionError(
        "no NVIDIA driver was found on this machine (libcuda.so.1); install one, or run with "
        "--device cpu");
  }
  // Drivers run programs of any toolkit of their own major version.
  if (driver / 1000 < CUDART_VERSION / 1000) {
    return absl::FailedPreconditionError(
        absl::StrCat("the NVIDIA driver supports CUDA up to ", VersionName(driver),
                     ", and this heddle was built with CUDA ", VersionName(CUDART_VERSION),
                     "; update the driver, or build with an older toolkit"));
  }
  return absl::OkStatus();
}

absl::StatusOr<DeviceInfo> Describe(int32_t ordinal) {
  int count = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess && error != cudaErrorNoDevice) {
    return absl::FailedPreconditionError(
        absl::StrCat("the NVIDIA driver does not answer: ", cudaGetErrorString(error)));
  }
  if (ordinal < 0 || ordinal >= count) {
    return absl::NotFoundError(absl::StrCat("cuda:", ordinal, " does not exist; this process sees ",
                                            count, " CUDA device", count == 1 ? "" : "s"));
  }
  cudaDeviceProp properties;
  error = cudaGetDeviceProperties(&properties, ordinal);
  if (error != cudaSuccess) {
    return absl::UnavailableError(
        absl::StrCat("cuda:", ordinal, " does not answer: ", cudaGetErrorString(error)));
  }
  return DeviceInfo{.name = properties.name,
                    .ordinal = ordinal,
                    .major = properties.major,
                    .minor = properties.minor,
                    .num_multiprocessors = properties.multiProcessorCount,
                    .total_bytes = static_cast<int64_t>(properties.totalGlobalMem)};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Runtime>> Runtime::Open(int32_t ordinal) {
  HEDDLE_RETURN_IF_ERROR(CheckDriver());
  HEDDLE_ASSIGN_OR_RETURN(DeviceInfo info, Describe(ordinal));
  if (info.major < kMinMajor) {
    return absl::UnimplementedError(
        absl::StrCat("cuda:", ordinal, " (", info.name, ") has compute capability ", info.major,
                     ".", info.minor, "; heddle needs ", kMinMajor, ".0 (Ampere) or later"));
  }
  std::unique_ptr<Runtime> runtime(new Runtime);
  runtime->info_ = std::move(info);
  HEDDLE_RETURN_IF_ERROR(runtime->ToStatus(cudaSetDevice(ordinal), "selecting the device"));
  cudaStream_t stream = nullptr;
  HEDDLE_RETURN_IF_ERROR(runtime->ToStatus(
      cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream"));
  runtime->stream_ = stream;
  return runtime;
}

Runtime::~Runtime() {
  if (stream_ != nullptr) cudaStreamDestroy(static_cast<cudaStream_t>(stream_));
}

int64_t Runtime::FreeBytes() const {
  size_t free_bytes = 0, total = 0;
  return cudaMemGetInfo(&free_bytes, &total) == cudaSuccess ? static_cast<int64_t>(free_bytes) : 0;
}

absl::StatusOr<void*> Runtime::AllocateDevice(int64_t bytes) {
  void* data = nullptr;
  cudaError_t error = cudaMalloc(&data, static_cast<size_t>(bytes));
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // this error is not sticky: forget it
    return OutOfDeviceMemory(info_, bytes, FreeBytes(), allocated_bytes_);
  }
  HEDDLE_RETURN_IF_ERROR(ToStatus(error, "allocating device memory"));
  allocated_bytes_ += bytes;
  HEDDLE_RETURN_IF_ERROR(ToStatus(
      cudaMemsetAsync(data, 0, static_cast<size_t>(bytes), static_cast<cudaStream_t>(stream_)),
      "clearing device memory"));
  return data;
}

void Runtime::FreeDevice(void* data, int64_t bytes) {
  if (data == nullptr) return;
  cudaFree(data);  // waits for kernels that may still use it
  allocated_bytes_ -= bytes;
}

absl::StatusOr<void*> Runtime::AllocatePinned(int64_t bytes) {
  void* data = nullptr;
  HEDDLE_RETURN_IF_ERROR(ToStatus(cudaMallocHost(&data, static_cast<size_t>(bytes)),
                                  "allocating page-locked host memory"));
  return data;
}

void Runtime::FreePinned(void* data) {
  if (data != nullptr) cudaFreeHost(data);
}

absl::Status Runtime::CopyToDevice(void* to, const void* from, int64_t bytes) {
  return ToStatus(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice,
                                  static_cast<cudaStream_t>(stream_)),
                  "copying to the device");
}

absl::Status Runtime::CopyToHost(void* to, const void* from, int64_t bytes) {
  return ToStatus(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost,
                                  static_cast<cudaStream_t>(stream_)),
                  "copying from the device");
}

absl::Status Runtime::Synchronize() {
  return ToStatus(cudaStreamSynchronize(static_cast<cudaStream_t>(stream_)), "running a step");
}

absl::Status Runtime::ToStatus(Error error, const char* what) const {
  if (error == kSuccess) return absl::OkStatus();
  const auto code = static_cast<cudaError_t>(error);
  return absl::UnavailableError(absl::StrCat("cuda:", info_.ordinal, " (", info_.name,
                                             ") failed while ", what, ": ",
                                             cudaGetErrorString(code), " (", error, ")"));
}

}  // namespace heddle::kernels::cuda
