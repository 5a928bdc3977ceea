// Functions that the objects of nvcc call: before main, to register their code, and in the launch
// functions that stand for kernels on the host (crt/host_runtime.h, crt/device_functions.h of CUDA
// 13).
#include <vector>

#include "tests/gpu/ptx/cudart.h"

namespace heddle::ptx {
namespace {

// The configuration of kernel<<<grid, block, shared, stream>>>, from the call to the stub.
struct CallConfiguration {
  dim3 grid, block;
  size_t shared_bytes;
  cudaStream_t stream;
};

std::vector<CallConfiguration>& CallConfigurations() {
  thread_local std::vector<CallConfiguration> configurations;
  return configurations;
}

}  // namespace

extern "C" {

void** __cudaRegisterFatBinary(void* wrapper) {
  return reinterpret_cast<void**>(Context::Get().Register(wrapper));
}

void __cudaRegisterFatBinaryEnd(void**) {}

// Code stays, as it does on a device until the context ends.
void __cudaUnregisterFatBinary(void**) {}

char __cudaInitModule(void**) { return 1; }

void __cudaRegisterFunction(void** source, const char* host_function, char*, const char* name, int,
                            uint3*, uint3*, dim3*, dim3*, int*) {
  Context::Get().AddKernel(reinterpret_cast<Registered*>(source), host_function, name);
}

// No function here copies to variables.
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes,
                                     CUstream_st* stream) {
  CallConfigurations().push_back({grid, block, shared_bytes, stream});
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes,
                                       void* stream) {
  auto& configurations = CallConfigurations();
  if (configurations.empty()) return cudaErrorMissingConfiguration;
  const auto& last = configurations.back();
  *grid = last.grid;
  *block = last.block;
  *shared_bytes = last.shared_bytes;
  *static_cast<cudaStream_t*>(stream) = last.stream;
  configurations.pop_back();
  return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host_function) {
  *kernel = Context::Get().FindKernel(host_function);
  return *kernel != nullptr ? cudaSuccess : cudaErrorInvalidDeviceFunction;
}

}  // extern "C"

}  // namespace heddle::ptx
