#include "tests/gpu/ptx/cudart_kernels.h"

namespace heddle::ptx {
namespace {

__device__ int32_t variable[2] = {70, 71};

__device__ void Append(Log* log, int32_t value) { log->entries[log->count++] = value; }

__global__ void AppendValue(AppendParams p) { Append(p.log, p.value); }

__global__ void AppendEarly(AppendParams p) {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  Append(p.log, p.value);
}

__global__ void __launch_bounds__(64) Narrow(Log* log) {
  if (threadIdx.x == 0) Append(log, static_cast<int32_t>(blockDim.x));
}

__global__ void Shared(Log* log, int32_t words) {
  __shared__ int32_t fixed[256];
  extern __shared__ int32_t dynamic[];
  fixed[threadIdx.x] = 1000;
  dynamic[words - 1] = 7;
  __syncthreads();
  Append(log, dynamic[words - 1] + fixed[threadIdx.x]);
}

__global__ void Stray(Log* log) { *reinterpret_cast<volatile int32_t*>(&log->entries[31]) = 1; }

__global__ void Mixed(Log* log, int8_t a, int32_t b, int64_t c, double d) {
  Append(log, a);
  Append(log, b);
  Append(log, static_cast<int32_t>(c));
  Append(log, static_cast<int32_t>(d * 8));
  Append(log, variable[0]++);
  Append(log, variable[1]++);
}

template <typename Kernel>
const void* AddressOf(Kernel* kernel) {
  return reinterpret_cast<const void*>(kernel);
}

}  // namespace

const void* AppendKernel() { return AddressOf(AppendValue); }
const void* AppendEarlyKernel() { return AddressOf(AppendEarly); }
const void* NarrowKernel() { return AddressOf(Narrow); }
const void* SharedKernel() { return AddressOf(Shared); }
const void* StrayKernel() { return AddressOf(Stray); }

void LaunchMixed(Log* log, cudaStream_t stream, int8_t a, int32_t b, int64_t c, double d) {
  Mixed<<<1, 1, 0, stream>>>(log, a, b, c, d);
}

}  // namespace heddle::ptx
