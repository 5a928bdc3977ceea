// The device and the errors as the runtime describes them, and the one function of the driver that
// is asked for.
#include <cuda.h>

#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "tests/gpu/ptx/cudart.h"
#include "tests/gpu/ptx/tensor_map.h"

namespace heddle::ptx {
namespace {

constexpr const char* kName = "PTX machine (H200)";

// CUDA C++ Programming Guide, "Technical Specifications per Compute Capability" 9.0; NVIDIA H200.
cudaDeviceProp Properties(const Context::Device& device) {
  cudaDeviceProp properties = {};
  std::memcpy(properties.name, kName, std::strlen(kName));
  properties.totalGlobalMem = static_cast<size_t>(Context::kTotalBytes);
  properties.sharedMemPerBlock = 48 << 10;
  properties.sharedMemPerBlockOptin = kMaxSharedBytes;
  properties.sharedMemPerMultiprocessor = 228 << 10;
  properties.regsPerBlock = 64 << 10;
  properties.regsPerMultiprocessor = 64 << 10;
  properties.warpSize = kWarpLanes;
  properties.maxThreadsPerBlock = 1024;
  properties.maxThreadsPerMultiProcessor = 2048;
  properties.major = device.major;
  properties.minor = device.minor;
  properties.multiProcessorCount = device.num_multiprocessors;
  properties.l2CacheSize = 50 << 20;
  return properties;
}

CUresult EncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                     const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                     const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                     CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                     CUtensorMapFloatOOBfill fill) {
  std::string error;
  const TiledMapArguments arguments = {.data_type = type,
                                       .rank = rank,
                                       .address = reinterpret_cast<uint64_t>(address),
                                       .sizes = sizes,
                                       .strides = strides,
                                       .box = box,
                                       .element_strides = element_strides,
                                       .interleave = interleave,
                                       .swizzle = swizzle,
                                       .l2_promotion = promotion,
                                       .fill = fill};
  if (EncodeTiledMap(arguments, map, &error)) return CUDA_SUCCESS;
  Refuse(cudaErrorInvalidValue, error);
  return CUDA_ERROR_INVALID_VALUE;
}
static_assert(std::is_same_v<decltype(&EncodeTiled), decltype(&cuTensorMapEncodeTiled)>);
static_assert(sizeof(cuuint64_t) == sizeof(uint64_t) && sizeof(CUtensorMap) == kMapBytes);

}  // namespace

extern "C" {

cudaError_t cudaDriverGetVersion(int* version) {
  return Call([&](Context&) {
    *version = CUDART_VERSION;
    return cudaSuccess;
  });
}

cudaError_t cudaGetDeviceCount(int* count) {
  return Call([&](Context&) {
    *count = 1;
    return cudaSuccess;
  });
}

// There is one device.
cudaError_t cudaDeviceCanAccessPeer(int* can, int /*device*/, int /*peer*/) {
  return Call([&](Context&) {
    *can = 0;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int /*flags*/) {
  return Call([&](Context&) {
    return Refuse(cudaErrorInvalidDevice, "the machine has no device " + std::to_string(peer));
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int ordinal) {
  return Call([&](Context& context) {
    if (ordinal != 0) return cudaErrorInvalidDevice;
    *properties = Properties(context.device);
    return cudaSuccess;
  });
}

cudaError_t cudaSetDevice(int ordinal) {
  return Call([&](Context&) { return ordinal == 0 ? cudaSuccess : cudaErrorInvalidDevice; });
}

cudaError_t cudaGetLastError() {
  Context& context = Context::Get();
  const std::lock_guard lock(context.mutex());
  const cudaError_t last = std::exchange(LastError(), cudaSuccess);
  return context.lost() != cudaSuccess ? context.lost() : last;
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorInvalidDeviceFunction:
      return "invalid device function";
    case cudaErrorNoKernelImageForDevice:
      return "no kernel image is available for execution on the device";
    case cudaErrorInvalidPtx:
      return "a PTX JIT compilation failed";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    case cudaErrorLaunchFailure:
      return "unspecified launch failure";
    case cudaErrorNotSupported:
      return "operation not supported";
    default:
      return "another error";
  }
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  return Call([&](Context&) {
    const bool is_known = std::string_view(symbol) == "cuTensorMapEncodeTiled" && version >= 12000;
    *function = is_known ? reinterpret_cast<void*>(&EncodeTiled) : nullptr;
    *found = is_known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
  });
}

}  // extern "C"

}  // namespace heddle::ptx
