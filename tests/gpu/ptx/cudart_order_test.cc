// The order of events in streams, events and graphs. Run twice, late and with HEDDLE_PTX_EARLY=1.
#include <cstring>

#include "tests/gpu/ptx/cudart_testing.h"

namespace heddle::ptx {
namespace {

using Entries = std::vector<int32_t>;

class PinnedInt {
 public:
  explicit PinnedInt(int32_t value) {
    void* data = nullptr;
    REQUIRE(cudaMallocHost(&data, sizeof(int32_t)) == cudaSuccess);
    at = static_cast<int32_t*>(data);
    *at = value;
  }
  ~PinnedInt() { cudaFreeHost(at); }
  PinnedInt(const PinnedInt&) = delete;
  PinnedInt& operator=(const PinnedInt&) = delete;
  int32_t* at = nullptr;
};

TEST_CASE("A copy from page-locked memory that is used again too early shows", "[ptx][kernel]") {
  Bench bench;
  PinnedInt source(1);
  REQUIRE(cudaMemcpyAsync(&bench.log->count, source.at, 4, cudaMemcpyHostToDevice, bench.stream) ==
          cudaSuccess);
  *source.at = 2;
  CHECK(bench.Entries().size() == (IsLate() ? 2 : 1));
}

TEST_CASE("Pageable memory has been copied when the call returns", "[ptx][kernel]") {
  Bench bench;
  int32_t source = 1, target = -1;
  REQUIRE(cudaMemcpyAsync(&bench.log->count, &source, 4, cudaMemcpyHostToDevice, bench.stream) ==
          cudaSuccess);
  source = 2;
  REQUIRE(cudaMemcpyAsync(&target, &bench.log->count, 4, cudaMemcpyDeviceToHost, bench.stream) ==
          cudaSuccess);
  CHECK(target == 1);
}

TEST_CASE("Page-locked memory that is read before it was waited for shows", "[ptx][kernel]") {
  Bench bench;
  PinnedInt target(-1);
  REQUIRE(cudaMemcpyAsync(target.at, &bench.log->count, 4, cudaMemcpyDeviceToHost, bench.stream) ==
          cudaSuccess);
  CHECK(*target.at == (IsLate() ? -1 : 0));
  REQUIRE(cudaStreamSynchronize(bench.stream) == cudaSuccess);
  CHECK(*target.at == 0);
}

TEST_CASE("A stream goes on when the event that it waits for was passed", "[ptx][kernel]") {
  Bench first, second;
  Log* own_log = std::exchange(second.log, first.log);
  cudaEvent_t event = nullptr;
  REQUIRE(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
  REQUIRE(first.Append(1) == cudaSuccess);
  REQUIRE(cudaEventRecord(event, first.stream) == cudaSuccess);
  REQUIRE(first.Append(2) == cudaSuccess);
  REQUIRE(cudaStreamWaitEvent(second.stream, event, 0) == cudaSuccess);
  REQUIRE(second.Append(3) == cudaSuccess);
  // On a late machine nothing but the event has made the first stream go on.
  CHECK(second.Entries() == (IsLate() ? Entries{1, 3} : Entries{1, 2, 3}));
  CHECK(first.Entries() == (IsLate() ? Entries{1, 3, 2} : Entries{1, 2, 3}));
  second.log = own_log;
  CHECK(cudaEventDestroy(event) == cudaSuccess);
}

TEST_CASE("Waiting for an event does not wait for what comes behind it", "[ptx][kernel]") {
  Bench bench;
  PinnedInt before(-1), behind(-1);
  cudaEvent_t event = nullptr;
  REQUIRE(cudaEventCreate(&event) == cudaSuccess);
  cudaMemcpyAsync(before.at, &bench.log->count, 4, cudaMemcpyDeviceToHost, bench.stream);
  REQUIRE(cudaEventRecord(event, bench.stream) == cudaSuccess);
  cudaMemcpyAsync(behind.at, &bench.log->count, 4, cudaMemcpyDeviceToHost, bench.stream);
  REQUIRE(cudaEventSynchronize(event) == cudaSuccess);
  CHECK(*before.at == 0);
  CHECK(*behind.at == (IsLate() ? -1 : 0));
  CHECK(cudaEventDestroy(event) == cudaSuccess);
}

TEST_CASE("Events that were passed tell the time between them", "[ptx][kernel]") {
  Bench bench;
  cudaEvent_t begin = nullptr, end = nullptr;
  REQUIRE(cudaEventCreate(&begin) == cudaSuccess);
  REQUIRE(cudaEventCreate(&end) == cudaSuccess);
  cudaEventRecord(begin, bench.stream);
  bench.Append(1);
  cudaEventRecord(end, bench.stream);
  float milliseconds = -1;
  if (IsLate()) CHECK(cudaEventElapsedTime(&milliseconds, begin, end) == cudaErrorNotReady);
  REQUIRE(cudaEventSynchronize(end) == cudaSuccess);
  REQUIRE(cudaEventElapsedTime(&milliseconds, begin, end) == cudaSuccess);
  CHECK(milliseconds > 0);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
}

// A graph whose nodes append their numbers.
class AppendGraph {
 public:
  AppendGraph(Log* log, int32_t count, const void* kernel = AppendKernel())
      : log_(log), kernel_(kernel) {
    REQUIRE(cudaGraphCreate(&graph, 0) == cudaSuccess);
    for (int32_t i = 0; i < count; ++i) {
      AppendParams appended = {log_, i};
      void* pointers[] = {&appended};
      const cudaKernelNodeParams params = Params(pointers);
      REQUIRE(cudaGraphAddKernelNode(&nodes.emplace_back(), graph, nullptr, 0, &params) ==
              cudaSuccess);
    }
  }
  ~AppendGraph() {
    if (executable != nullptr) cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
  }
  AppendGraph(const AppendGraph&) = delete;
  AppendGraph& operator=(const AppendGraph&) = delete;

  cudaError_t AddEdge(size_t from, size_t to, bool early = false) {
    cudaGraphEdgeData edge = {};
    if (early) {
      edge.type = cudaGraphDependencyTypeProgrammatic;
      edge.from_port = cudaGraphKernelNodePortProgrammatic;
    }
    return cudaGraphAddDependencies(graph, &nodes[from], &nodes[to], &edge, 1);
  }
  cudaError_t Instantiate() { return cudaGraphInstantiate(&executable, graph, 0); }
  cudaError_t Change(cudaGraphNode_t node, int32_t value) {
    AppendParams appended = {log_, value};
    void* pointers[] = {&appended};
    const cudaKernelNodeParams params = Params(pointers);
    return cudaGraphExecKernelNodeSetParams(executable, node, &params);
  }

  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  std::vector<cudaGraphNode_t> nodes;

 private:
  cudaKernelNodeParams Params(void** pointers) const {
    cudaKernelNodeParams params = {};
    params.func = const_cast<void*>(kernel_);
    params.gridDim = params.blockDim = dim3(1);
    params.kernelParams = pointers;
    return params;
  }
  Log* log_;
  const void* kernel_;
};

TEST_CASE("Launches of a graph keep the order of its edges", "[ptx][kernel]") {
  Bench bench;
  AppendGraph graph(bench.log, 4, AppendEarlyKernel());
  REQUIRE(graph.AddEdge(2, 0) == cudaSuccess);
  REQUIRE(graph.AddEdge(0, 3, /*early=*/true) == cudaSuccess);
  REQUIRE(graph.AddEdge(3, 1) == cudaSuccess);
  REQUIRE(graph.Instantiate() == cudaSuccess);
  REQUIRE(cudaGraphLaunch(graph.executable, bench.stream) == cudaSuccess);
  CHECK(bench.Entries() == Entries{2, 0, 3, 1});
}

TEST_CASE("Launches that no edge orders change places on a late machine", "[ptx][kernel]") {
  Bench bench;
  AppendGraph graph(bench.log, 4);  // two chains: 0 and 2, 1 and 3
  REQUIRE(graph.AddEdge(0, 2) == cudaSuccess);
  REQUIRE(graph.AddEdge(1, 3) == cudaSuccess);
  REQUIRE(graph.Instantiate() == cudaSuccess);
  REQUIRE(cudaGraphLaunch(graph.executable, bench.stream) == cudaSuccess);
  REQUIRE(cudaGraphLaunch(graph.executable, bench.stream) == cudaSuccess);
  CHECK(bench.Entries() ==
        (IsLate() ? Entries{1, 3, 0, 2, 0, 2, 1, 3} : Entries{0, 1, 2, 3, 0, 1, 2, 3}));
}

TEST_CASE("Changed parameters are those of later launches of a graph", "[ptx][kernel]") {
  Bench bench;
  AppendGraph graph(bench.log, 2);
  REQUIRE(graph.AddEdge(0, 1) == cudaSuccess);
  REQUIRE(graph.Instantiate() == cudaSuccess);
  REQUIRE(cudaGraphLaunch(graph.executable, bench.stream) == cudaSuccess);
  REQUIRE(graph.Change(graph.nodes[1], 10) == cudaSuccess);
  REQUIRE(cudaGraphLaunch(graph.executable, bench.stream) == cudaSuccess);
  CHECK(bench.Entries() == Entries{0, 1, 0, 10});
}

TEST_CASE("A node of another graph cannot be changed", "[ptx][kernel]") {
  Bench bench;
  AppendGraph graph(bench.log, 1), other(bench.log, 1);
  REQUIRE(graph.Instantiate() == cudaSuccess);
  CHECK(graph.Change(other.nodes[0], 10) == cudaErrorInvalidValue);
}

TEST_CASE("Edges that go round, are there already or lead out are refused", "[ptx][kernel]") {
  Bench bench;
  AppendGraph graph(bench.log, 2), other(bench.log, 1);
  REQUIRE(graph.AddEdge(0, 1) == cudaSuccess);
  CHECK(graph.AddEdge(0, 1) == cudaErrorInvalidValue);
  CHECK(graph.AddEdge(0, 0) == cudaErrorInvalidValue);
  graph.nodes.push_back(other.nodes[0]);
  CHECK(graph.AddEdge(0, 2) == cudaErrorInvalidValue);
  REQUIRE(graph.AddEdge(1, 0) == cudaSuccess);
  CHECK(graph.Instantiate() == cudaErrorInvalidValue);
}

TEST_CASE("An early edge leads to a kernel that waits", "[ptx][kernel]") {
  Bench bench;
  AppendGraph graph(bench.log, 2);
  CHECK(graph.AddEdge(0, 1, /*early=*/true) == cudaErrorInvalidValue);
}

}  // namespace
}  // namespace heddle::ptx
