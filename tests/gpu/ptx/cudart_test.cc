#include "tests/gpu/ptx/cudart_testing.h"

namespace heddle::ptx {
namespace {

using Entries = std::vector<int32_t>;

cudaLaunchAttribute Early() {
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  return early;
}

TEST_CASE("A stub of nvcc's passes parameters and finds variables as they were left",
          "[ptx][kernel]") {
  Bench bench;
  LaunchMixed(bench.log, bench.stream, -3, 9, int64_t{1} << 32 | 5, 0.25);
  LaunchMixed(bench.log, bench.stream, 4, 10, 6, 1.5);
  CHECK(bench.Entries() == Entries{-3, 9, 5, 2, 70, 71, 4, 10, 6, 12, 71, 72});
}

TEST_CASE("Parameters are those of the time of the launch", "[ptx][kernel]") {
  Bench bench;
  AppendParams params = {bench.log, 1};
  REQUIRE(bench.Launch(AppendKernel(), {&params}) == cudaSuccess);
  params.value = 2;
  CHECK(bench.Entries() == Entries{1});
}

TEST_CASE("More than 48 KiB of shared memory have to be allowed first", "[ptx][kernel]") {
  Bench bench;
  int32_t words = (48 << 10) / 4;
  // 1 KiB of the kernel's own counts, too.
  CHECK(bench.Launch(SharedKernel(), {&bench.log, &words}, 1, 48 << 10) == cudaErrorInvalidValue);
  words -= 256;
  CHECK(bench.Launch(SharedKernel(), {&bench.log, &words}, 1, 47 << 10) == cudaSuccess);
  REQUIRE(cudaFuncSetAttribute(SharedKernel(), cudaFuncAttributeMaxDynamicSharedMemorySize,
                               100 << 10) == cudaSuccess);
  words = (100 << 10) / 4;
  CHECK(bench.Launch(SharedKernel(), {&bench.log, &words}, 1, 100 << 10) == cudaSuccess);
  CHECK(bench.Launch(SharedKernel(), {&bench.log, &words}, 1, 101 << 10) == cudaErrorInvalidValue);
  CHECK(bench.Entries() == Entries{1007, 1007});
}

TEST_CASE("A block cannot be allowed more shared memory than there is", "[ptx][kernel]") {
  const auto attribute = cudaFuncAttributeMaxDynamicSharedMemorySize;
  CHECK(cudaFuncSetAttribute(SharedKernel(), attribute, 227 << 10) == cudaErrorInvalidValue);
  CHECK(cudaFuncSetAttribute(SharedKernel(), attribute, 226 << 10) == cudaSuccess);
}

TEST_CASE("Blocks larger than the kernel was made for are refused", "[ptx][kernel]") {
  Bench bench;
  CHECK(bench.Launch(NarrowKernel(), {&bench.log}, 65) == cudaErrorInvalidValue);
  CHECK(bench.Launch(NarrowKernel(), {&bench.log}, 64) == cudaSuccess);
  CHECK(bench.Launch(NarrowKernel(), {&bench.log}, 0) == cudaErrorInvalidConfiguration);
  CHECK(bench.Entries() == Entries{64});
}

TEST_CASE("An error of a refused call is told once more, and then forgotten", "[ptx][kernel]") {
  Bench bench;
  cudaGetLastError();
  REQUIRE(bench.Launch(NarrowKernel(), {&bench.log}, 65) == cudaErrorInvalidValue);
  CHECK(cudaGetLastError() == cudaErrorInvalidValue);
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(bench.Append(1) == cudaSuccess);
}

TEST_CASE("Only a kernel that waits may begin early", "[ptx][kernel]") {
  Bench bench;
  AppendParams params = {bench.log, 1};
  REQUIRE(bench.Append(0) == cudaSuccess);
  CHECK(bench.Launch(AppendEarlyKernel(), {&params}, 1, 0, {Early()}) == cudaSuccess);
  CHECK(bench.Launch(AppendKernel(), {&params}, 1, 0, {Early()}) == cudaErrorInvalidValue);
  cudaLaunchAttribute not_early = Early();
  not_early.val.programmaticStreamSerializationAllowed = 0;
  CHECK(bench.Launch(AppendKernel(), {&params}, 1, 0, {not_early}) == cudaSuccess);
  CHECK(bench.Entries() == Entries{0, 1, 1});
}

TEST_CASE("Nothing begins before a copy has ended", "[ptx][kernel]") {
  Bench bench;  // which has filled memory
  AppendParams params = {bench.log, 1};
  const auto launch_early = [&] {
    return bench.Launch(AppendEarlyKernel(), {&params}, 1, 0, {Early()});
  };
  CHECK(launch_early() == cudaErrorInvalidValue);
  REQUIRE(bench.Append(2) == cudaSuccess);
  CHECK(launch_early() == cudaSuccess);
  CHECK(bench.Entries() == Entries{2, 1});  // copies them
  CHECK(launch_early() == cudaErrorInvalidValue);
}

TEST_CASE("Attributes of launches that are not modelled are refused", "[ptx][kernel]") {
  Bench bench;
  AppendParams params = {bench.log, 1};
  cudaLaunchAttribute cluster = {};
  cluster.id = cudaLaunchAttributeClusterDimension;
  CHECK(bench.Launch(AppendKernel(), {&params}, 1, 0, {cluster}) == cudaErrorNotSupported);
}

TEST_CASE("Copies past the end of an allocation, or the wrong way, are refused", "[ptx][kernel]") {
  Bench bench;
  uint8_t host[sizeof(Log) + 1] = {};
  const auto copy = [&](void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
    return cudaMemcpyAsync(to, from, bytes, kind, bench.stream);
  };
  CHECK(copy(bench.log, host, sizeof(Log), cudaMemcpyHostToDevice) == cudaSuccess);
  CHECK(copy(bench.log, host, sizeof(host), cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  CHECK(copy(host, bench.log, sizeof(host), cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
  CHECK(copy(bench.log, host, 4, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
  CHECK(copy(host, host + 4, 4, cudaMemcpyDeviceToDevice) == cudaErrorInvalidValue);
  CHECK(cudaMemsetAsync(bench.log, 0, sizeof(Log) + 1, bench.stream) == cudaErrorInvalidValue);
}

TEST_CASE("Device memory is counted, and freed as it was allocated", "[ptx][kernel]") {
  size_t before = 0, during = 0, after = 0, total = 0;
  cudaMemGetInfo(&before, &total);
  void* data = nullptr;
  REQUIRE(cudaMalloc(&data, 1 << 20) == cudaSuccess);
  cudaMemGetInfo(&during, &total);
  CHECK(before - during == 1 << 20);
  CHECK(cudaFreeHost(data) == cudaErrorInvalidValue);
  CHECK(cudaFree(data) == cudaSuccess);
  CHECK(cudaFree(data) == cudaErrorInvalidValue);
  cudaMemGetInfo(&after, &total);
  CHECK(after == before);
  CHECK(cudaMalloc(&data, total + 1) == cudaErrorMemoryAllocation);
}

TEST_CASE("Of the driver's functions that of tensor maps is there", "[ptx][kernel]") {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  REQUIRE(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                           cudaEnableDefault, &found) == cudaSuccess);
  CHECK(found == cudaDriverEntryPointSuccess);
  CHECK(function != nullptr);
  REQUIRE(cudaGetDriverEntryPointByVersion("cuTensorMapReplaceAddress", &function, 12000,
                                           cudaEnableDefault, &found) == cudaSuccess);
  CHECK(found == cudaDriverEntryPointSymbolNotFound);
  CHECK(function == nullptr);
}

}  // namespace
}  // namespace heddle::ptx
