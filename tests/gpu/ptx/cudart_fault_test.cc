// A program of its own: after a fault the process has no device any more.
#include "tests/gpu/ptx/cudart_testing.h"

namespace heddle::ptx {
namespace {

TEST_CASE("After a fault in a kernel every call fails with its error", "[ptx][kernel]") {
  Bench bench;
  bench.Launch(StrayKernel(), {&bench.log});
  CHECK(cudaStreamSynchronize(bench.stream) == cudaErrorLaunchFailure);
  CHECK(cudaGetLastError() == cudaErrorLaunchFailure);
  CHECK(cudaGetLastError() == cudaErrorLaunchFailure);
  void* data = nullptr;
  CHECK(cudaMalloc(&data, 1) == cudaErrorLaunchFailure);
  CHECK(bench.Append(1) == cudaErrorLaunchFailure);
  CHECK(cudaStreamDestroy(bench.stream) == cudaErrorLaunchFailure);
}

}  // namespace
}  // namespace heddle::ptx
