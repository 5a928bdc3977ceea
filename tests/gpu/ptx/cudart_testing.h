// A stream and a log on the PTX machine's device, for the tests of its runtime.
#pragma once

#include <catch2/catch.hpp>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "tests/gpu/ptx/cudart_kernels.h"

namespace heddle::ptx {

inline bool IsLate() {
  const char* early = std::getenv("HEDDLE_PTX_EARLY");
  return early == nullptr || std::string_view(early) != "1";
}

class Bench {
 public:
  Bench() {
    REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    void* data = nullptr;
    REQUIRE(cudaMalloc(&data, sizeof(Log)) == cudaSuccess);
    REQUIRE(cudaMemsetAsync(data, 0, sizeof(Log), stream) == cudaSuccess);
    log = static_cast<Log*>(data);
  }
  ~Bench() {
    cudaStreamDestroy(stream);
    cudaFree(log);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  // One block on the stream.
  cudaError_t Launch(const void* kernel, std::vector<void*> params, unsigned threads = 1,
                     size_t shared_bytes = 0, std::vector<cudaLaunchAttribute> attributes = {}) {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(1);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = attributes.data();
    config.numAttrs = static_cast<unsigned>(attributes.size());
    return cudaLaunchKernelExC(&config, kernel, params.data());
  }
  cudaError_t Append(int32_t value) {
    AppendParams params = {log, value};
    return Launch(AppendKernel(), {&params});
  }

  // The entries after all of the stream's work.
  std::vector<int32_t> Entries() {
    Log read = {};
    REQUIRE(cudaMemcpyAsync(&read, log, sizeof(Log), cudaMemcpyDeviceToHost, stream) ==
            cudaSuccess);
    REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
    return {read.entries, read.entries + read.count};
  }

  cudaStream_t stream = nullptr;
  Log* log = nullptr;
};

}  // namespace heddle::ptx
