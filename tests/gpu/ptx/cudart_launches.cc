// Launches of kernels, and what may be asked for them.
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/gpu/ptx/cudart.h"

namespace heddle::ptx {
namespace {

constexpr int32_t kSharedBytesUnasked = 48 << 10;  // static and dynamic ones

std::string ToString(const dim3& size) { return absl::StrCat(size.x, "x", size.y, "x", size.z); }

// CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
bool IsGrid(const dim3& grid) {
  return grid.x >= 1 && grid.x <= 0x7FFFFFFF && grid.y >= 1 && grid.y <= 65535 && grid.z >= 1 &&
         grid.z <= 65535;
}

bool IsBlock(const dim3& block) {
  return block.x >= 1 && block.x <= 1024 && block.y >= 1 && block.y <= 1024 && block.z >= 1 &&
         block.z <= 64 && uint64_t{block.x} * block.y * block.z <= 1024;
}

cudaError_t CheckShape(const CUkern_st& kernel, const LaunchRequest& request) {
  if (!IsGrid(request.grid) || !IsBlock(request.block)) {
    return Refuse(cudaErrorInvalidConfiguration,
                  absl::StrCat(Demangled(kernel.name), ": a grid of ", ToString(request.grid),
                               " blocks of ", ToString(request.block)));
  }
  const uint32_t threads = request.block.x * request.block.y * request.block.z;
  if (threads > static_cast<uint32_t>(kernel.kernel->max_threads)) {
    return Refuse(cudaErrorInvalidValue,
                  absl::StrCat(Demangled(kernel.name), ": ", threads, " threads, made for ",
                               kernel.kernel->max_threads, " at most"));
  }
  const int32_t allowed = kernel.max_dynamic_shared_bytes.value_or(
      kSharedBytesUnasked - kernel.kernel->static_shared_bytes);
  if (request.dynamic_shared_bytes > static_cast<size_t>(allowed)) {
    return Refuse(cudaErrorInvalidValue,
                  absl::StrCat(Demangled(kernel.name), ": ", request.dynamic_shared_bytes,
                               " bytes of dynamic shared memory, allowed are ", allowed));
  }
  return cudaSuccess;
}

Dim3 ToDim3(const dim3& size) { return {size.x, size.y, size.z}; }

// Only attributes of one kind are known, see LaunchKernel in runtime_cuda.cc.
bool ReadAttributes(const cudaLaunchConfig_t& config, bool* is_early) {
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = config.attrs[i];
    if (attribute.id != cudaLaunchAttributeProgrammaticStreamSerialization) return false;
    *is_early = attribute.val.programmaticStreamSerializationAllowed != 0;
  }
  return true;
}

cudaError_t LaunchOn(Context& context, CUstream_st* stream, const LaunchRequest& request) {
  if (!IsLive(context.streams, stream)) {
    return Refuse(cudaErrorInvalidResourceHandle, "a launch on no stream");
  }
  auto launch = std::make_shared<PreparedLaunch>();
  const cudaError_t error = Prepare(context, request, launch.get());
  if (error != cudaSuccess) return error;
  if (request.is_early && stream->follows_other) {
    return Refuse(cudaErrorInvalidValue,
                  Demangled(request.kernel->name) + ": may begin early, and follows no kernel");
  }
  context.Enqueue(*stream, [&context, launch] { context.Run(*launch); });
  stream->follows_other = false;
  return cudaSuccess;
}

}  // namespace

cudaError_t CheckWaits(const CUkern_st& kernel) {
  if (kernel.waits) return cudaSuccess;
  return Refuse(
      cudaErrorInvalidValue,
      Demangled(kernel.name) + ": may begin early, and waits for nothing (griddepcontrol.wait)");
}

cudaError_t Prepare(Context& context, const LaunchRequest& request, PreparedLaunch* launch) {
  if (request.kernel == nullptr) {
    return Refuse(cudaErrorInvalidDeviceFunction, "a launch of a function that is no kernel");
  }
  CUkern_st& kernel = *request.kernel;
  cudaError_t error = context.Load(kernel);
  if (error == cudaSuccess) error = CheckShape(kernel, request);
  if (error != cudaSuccess) return error;
  if (request.is_early) error = CheckWaits(kernel);
  if (error != cudaSuccess) return error;
  launch->kernel = &kernel;
  launch->config = {.grid = ToDim3(request.grid),
                    .block = ToDim3(request.block),
                    .dynamic_shared_bytes = static_cast<int32_t>(request.dynamic_shared_bytes)};
  launch->is_early = request.is_early;
  const auto bytes = static_cast<size_t>(kernel.kernel->param_bytes);
  launch->params.assign(bytes / sizeof(PreparedLaunch::Line) + 1, {});
  auto* to = launch->params.front().bytes;
  for (size_t i = 0; i < kernel.kernel->params.size(); ++i) {
    const Kernel::Param& param = kernel.kernel->params[i];
    std::memcpy(to + param.offset, request.params[i], static_cast<size_t>(param.bytes));
  }
  return cudaSuccess;
}

extern "C" {

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function,
                                void** params) {
  return Call([&](Context& context) {
    bool is_early = false;
    if (!ReadAttributes(*config, &is_early)) {
      return Refuse(cudaErrorNotSupported, "a launch with an attribute that is not known here");
    }
    return LaunchOn(context, config->stream,
                    {.kernel = context.FindKernel(function),
                     .grid = config->gridDim,
                     .block = config->blockDim,
                     .dynamic_shared_bytes = config->dynamicSmemBytes,
                     .params = params,
                     .is_early = is_early});
  });
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** params,
                               size_t shared_bytes, cudaStream_t stream) {
  return Call([&](Context& context) {
    return LaunchOn(context, stream,
                    {.kernel = kernel,
                     .grid = grid,
                     .block = block,
                     .dynamic_shared_bytes = shared_bytes,
                     .params = params});
  });
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  return Call([&](Context& context) {
    ++context.attribute_requests;
    CUkern_st* kernel = context.FindKernel(function);
    if (kernel == nullptr) return cudaErrorInvalidDeviceFunction;
    const cudaError_t error = context.Load(*kernel);
    if (error != cudaSuccess) return error;
    if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout) {
      return value >= -1 && value <= 100 ? cudaSuccess : cudaErrorInvalidValue;
    }
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaErrorNotSupported;
    if (value < 0 || value + kernel->kernel->static_shared_bytes > kMaxSharedBytes) {
      return Refuse(cudaErrorInvalidValue, absl::StrCat(Demangled(kernel->name), ": ", value,
                                                        " bytes of dynamic shared memory"));
    }
    kernel->max_dynamic_shared_bytes = value;
    return cudaSuccess;
  });
}

// Fills in the attributes that are known for PTX.
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function) {
  return Call([&](Context& context) {
    CUkern_st* kernel = context.FindKernel(function);
    if (kernel == nullptr) return cudaErrorInvalidDeviceFunction;
    const cudaError_t error = context.Load(*kernel);
    if (error != cudaSuccess) return error;
    *attributes = {};
    attributes->sharedSizeBytes = static_cast<size_t>(kernel->kernel->static_shared_bytes);
    attributes->maxThreadsPerBlock = kernel->kernel->max_threads;
    return cudaSuccess;
  });
}

}  // extern "C"

}  // namespace heddle::ptx
