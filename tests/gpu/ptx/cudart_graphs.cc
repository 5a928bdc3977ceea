// Graphs of kernels. Launches of a graph keep the order that its edges ask for; among those that
// edges leave open the first comes first, or on a late machine in turns the last, and whatever
// follows what has just run: two streams in one graph then run one before the other both ways.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/gpu/ptx/cudart.h"

namespace heddle::ptx {
namespace {

LaunchRequest RequestOf(Context& context, const cudaKernelNodeParams& params, bool is_early) {
  return {.kernel = context.FindKernel(params.func),
          .grid = params.gridDim,
          .block = params.blockDim,
          .dynamic_shared_bytes = params.sharedMemBytes,
          .params = params.kernelParams,
          .is_early = is_early};
}

bool IsNodeOf(const CUgraph_st& graph, const CUgraphNode_st* node) {
  return IsLive(graph.nodes, node);
}

// CUDA Runtime API, cudaGraphEdgeData: only kernels have other ports than 0, and only to leave by.
bool IsKnown(const cudaGraphEdgeData& edge) {
  if (edge.to_port != 0) return false;
  if (edge.type == cudaGraphDependencyTypeDefault) {
    return edge.from_port == cudaGraphKernelNodePortDefault;
  }
  return edge.type == cudaGraphDependencyTypeProgrammatic &&
         edge.from_port == cudaGraphKernelNodePortProgrammatic;
}

cudaError_t AddEdge(CUgraph_st& graph, CUgraphNode_st* from, CUgraphNode_st* to,
                    const cudaGraphEdgeData& edge) {
  if (!IsNodeOf(graph, from) || !IsNodeOf(graph, to) || from == to || !IsKnown(edge)) {
    return Refuse(cudaErrorInvalidValue, "an edge of a kind or between nodes that there are not");
  }
  if (!graph.edges.emplace(from->index, to->index).second) {
    return Refuse(cudaErrorInvalidValue, "an edge is there already");
  }
  if (edge.type != cudaGraphDependencyTypeProgrammatic) return cudaSuccess;
  to->launch.is_early = true;
  return CheckWaits(*to->launch.kernel);
}

// Selects among the launches that could be next: kFollowing takes one that the last one has just
// made possible, so that dependent launches stay together.
enum class Next : uint8_t { kFirst, kLast, kFollowing };

size_t Take(Next next, std::vector<size_t>* ready) {
  auto it = ready->end() - 1;
  if (next == Next::kFirst) it = std::min_element(ready->begin(), ready->end());
  if (next == Next::kLast) it = std::max_element(ready->begin(), ready->end());
  const size_t taken = *it;
  ready->erase(it);
  return taken;
}

// Empty if the edges have a cycle.
std::vector<size_t> Order(const CUgraph_st& graph, Next next) {
  std::vector<int> missing(graph.nodes.size());
  for (const auto& [from, to] : graph.edges) ++missing[to];
  std::vector<size_t> ready, order;
  for (size_t i = missing.size(); i-- > 0;) {
    if (missing[i] == 0) ready.push_back(i);
  }
  while (!ready.empty()) {
    order.push_back(Take(next, &ready));
    const auto end = graph.edges.lower_bound({order.back() + 1, 0});
    for (auto edge = graph.edges.lower_bound({order.back(), 0}); edge != end; ++edge) {
      if (--missing[edge->second] == 0) ready.push_back(edge->second);
    }
  }
  if (order.size() < graph.nodes.size()) order.clear();
  return order;
}

// One order for each launch in turn.
std::vector<std::vector<size_t>> Orders(const CUgraph_st& graph, bool late) {
  if (!late) return {Order(graph, Next::kFirst)};
  return {Order(graph, Next::kLast), Order(graph, Next::kFollowing)};
}

}  // namespace

extern "C" {

cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned) {
  return Call([&](Context& context) {
    *graph = Add(context.graphs);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return Call([&](Context& context) { return Destroy(context.graphs, graph); });
}

cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                   const cudaGraphNode_t* dependencies, size_t num_dependencies,
                                   const cudaKernelNodeParams* params) {
  return Call([&](Context& context) {
    if (!IsLive(context.graphs, graph)) return cudaErrorInvalidResourceHandle;
    auto made = std::make_unique<CUgraphNode_st>();
    cudaError_t error = Prepare(context, RequestOf(context, *params, false), &made->launch);
    if (error != cudaSuccess) return error;
    made->index = graph->nodes.size();
    *node = graph->nodes.emplace_back(std::move(made)).get();
    for (size_t i = 0; i < num_dependencies && error == cudaSuccess; ++i) {
      error = AddEdge(*graph, dependencies[i], *node, {});
    }
    return error;
  });
}

cudaError_t cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t* from,
                                     const cudaGraphNode_t* to, const cudaGraphEdgeData* edges,
                                     size_t count) {
  return Call([&](Context& context) {
    if (!IsLive(context.graphs, graph)) return cudaErrorInvalidResourceHandle;
    cudaError_t error = cudaSuccess;
    for (size_t i = 0; i < count && error == cudaSuccess; ++i) {
      const cudaGraphEdgeData edge = edges != nullptr ? edges[i] : cudaGraphEdgeData{};
      error = AddEdge(*graph, from[i], to[i], edge);
    }
    return error;
  });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long flags) {
  return Call([&](Context& context) {
    if (!IsLive(context.graphs, graph)) return cudaErrorInvalidResourceHandle;
    if (flags != 0) return cudaErrorNotSupported;
    auto orders = Orders(*graph, context.machine().options().late);
    if (orders[0].empty() && !graph->nodes.empty()) {
      return Refuse(cudaErrorInvalidValue, "the edges of a graph go round");
    }
    *executable = Add(context.executables);
    (*executable)->graph = graph;
    (*executable)->orders = std::move(orders);
    for (const auto& node : graph->nodes) (*executable)->launches.push_back(node->launch);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  return Call([&](Context& context) { return Destroy(context.executables, executable); });
}

// Applies to later launches.
cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t executable, cudaGraphNode_t node,
                                             const cudaKernelNodeParams* params) {
  return Call([&](Context& context) {
    if (!IsLive(context.executables, executable) || !IsLive(context.graphs, executable->graph) ||
        !IsNodeOf(*executable->graph, node)) {
      return Refuse(cudaErrorInvalidValue, "a node that is not of the graph is to be changed");
    }
    PreparedLaunch& launch = executable->launches[node->index];
    return Prepare(context, RequestOf(context, *params, launch.is_early), &launch);
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  return Call([&](Context& context) {
    if (!IsLive(context.executables, executable) || !IsLive(context.streams, stream)) {
      return cudaErrorInvalidResourceHandle;
    }
    stream->follows_other = true;
    context.Enqueue(
        *stream, [&context, launches = executable->launches,
                  order = executable->orders[executable->launched++ % executable->orders.size()]] {
          for (const size_t i : order) context.Run(launches[i]);
        });
    return cudaSuccess;
  });
}

}  // extern "C"

}  // namespace heddle::ptx
