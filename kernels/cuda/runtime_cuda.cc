#include <cuda_runtime_api.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/cuda/runtime.h"

namespace heddle::kernels::cuda {
namespace {

struct CudaGraph {
  ~CudaGraph() {
    if (exec != nullptr) cudaGraphExecDestroy(exec);
    if (graph != nullptr) cudaGraphDestroy(graph);
  }
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  std::vector<cudaGraphNode_t> nodes;  // of the launches, in order
};

dim3 GridOf(const LaunchShape& shape) {
  return dim3(static_cast<unsigned>(shape.grid_x), static_cast<unsigned>(shape.grid_y),
              static_cast<unsigned>(shape.grid_z));
}

dim3 BlockOf(const LaunchShape& shape) { return dim3(static_cast<unsigned>(shape.threads)); }

// `arguments` is what the result points to.
cudaKernelNodeParams NodeOf(const Tape& tape, size_t i, void** arguments) {
  const Tape::Launch& launch = tape.launches()[i];
  arguments[0] = const_cast<void*>(tape.params(i));
  cudaKernelNodeParams node = {};
  node.func = const_cast<void*>(launch.kernel);
  node.gridDim = GridOf(launch.shape);
  node.blockDim = BlockOf(launch.shape);
  node.sharedMemBytes = static_cast<unsigned>(launch.shape.shared_bytes);
  node.kernelParams = arguments;
  return node;
}

cudaStream_t StreamOf(Stream queue) { return static_cast<cudaStream_t>(queue->stream); }

// No driver and an old driver both read as "error 35" without this.
absl::Status CheckDriver() {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
  return CheckDriverVersion(driver, CUDART_VERSION);
}

absl::StatusOr<DeviceInfo> Describe(int32_t ordinal) {
  int count = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess && error != cudaErrorNoDevice) {
    return absl::FailedPreconditionError(
        absl::StrCat("the NVIDIA driver does not answer: ", cudaGetErrorString(error)));
  }
  HEDDLE_RETURN_IF_ERROR(CheckOrdinal(ordinal, count));
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
  HEDDLE_RETURN_IF_ERROR(CheckCapability(info));
  std::unique_ptr<Runtime> runtime(new Runtime);
  runtime->info_ = std::move(info);
  HEDDLE_RETURN_IF_ERROR(runtime->ToStatus(cudaSetDevice(ordinal), "selecting the device"));
  cudaStream_t stream = nullptr;
  HEDDLE_RETURN_IF_ERROR(runtime->ToStatus(
      cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream"));
  runtime->queue_.stream = stream;
  return runtime;
}

Runtime::~Runtime() {
  if (queue_.stream != nullptr) cudaStreamDestroy(StreamOf(&queue_));
}

// An error here shows in the next call.
void Runtime::Bind() const { cudaSetDevice(info_.ordinal); }

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
  HEDDLE_RETURN_IF_ERROR(
      ToStatus(cudaMemsetAsync(data, 0, static_cast<size_t>(bytes), StreamOf(&queue_)),
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
                                  StreamOf(&queue_)),
                  "copying to the device");
}

absl::Status Runtime::CopyToHost(void* to, const void* from, int64_t bytes) {
  return ToStatus(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost,
                                  StreamOf(&queue_)),
                  "copying from the device");
}

absl::Status Runtime::CopyOnDevice(void* to, const void* from, int64_t bytes) {
  return ToStatus(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice,
                                  StreamOf(&queue_)),
                  "copying on the device");
}

absl::Status Runtime::Synchronize() {
  return ToStatus(cudaStreamSynchronize(StreamOf(&queue_)), "running a step");
}

Error LaunchKernel(const void* kernel, Tape::Caller, const LaunchShape& shape, void* stream,
                   const void* params) {
  void* arguments[] = {const_cast<void*>(params)};
  return cudaLaunchKernel(kernel, GridOf(shape), BlockOf(shape), arguments,
                          static_cast<size_t>(shape.shared_bytes),
                          static_cast<cudaStream_t>(stream));
}

absl::Status Runtime::LaunchOne(const Tape& tape, size_t i) {
  const Tape::Launch& launch = tape.launches()[i];
  return ToStatus(
      LaunchKernel(launch.kernel, launch.call, launch.shape, queue_.stream, tape.params(i)),
      "launching a kernel");
}

absl::StatusOr<Runtime::Graph> Runtime::MakeGraph(const Tape& tape) {
  auto made = std::make_unique<CudaGraph>();
  HEDDLE_RETURN_IF_ERROR(ToStatus(cudaGraphCreate(&made->graph, 0), "making a graph"));
  for (size_t i = 0; i < tape.launches().size(); ++i) {
    void* arguments[1];
    const cudaKernelNodeParams params = NodeOf(tape, i, arguments);
    const cudaGraphNode_t* after = made->nodes.empty() ? nullptr : &made->nodes.back();
    cudaGraphNode_t node = nullptr;
    HEDDLE_RETURN_IF_ERROR(ToStatus(
        cudaGraphAddKernelNode(&node, made->graph, after, after == nullptr ? 0 : 1, &params),
        "adding a kernel to a graph"));
    made->nodes.push_back(node);
  }
  HEDDLE_RETURN_IF_ERROR(
      ToStatus(cudaGraphInstantiate(&made->exec, made->graph, 0), "making a graph"));
  return made.release();
}

absl::Status Runtime::ChangeGraph(Graph graph, const Tape& tape, size_t i) {
  auto* made = static_cast<CudaGraph*>(graph);
  void* arguments[1];
  const cudaKernelNodeParams params = NodeOf(tape, i, arguments);
  return ToStatus(cudaGraphExecKernelNodeSetParams(made->exec, made->nodes[i], &params),
                  "changing a graph");
}

absl::Status Runtime::LaunchGraph(Graph graph) {
  return ToStatus(cudaGraphLaunch(static_cast<CudaGraph*>(graph)->exec, StreamOf(&queue_)),
                  "launching a graph");
}

void Runtime::FreeGraph(Graph graph) { delete static_cast<CudaGraph*>(graph); }

absl::Status Runtime::ToStatus(Error error, const char* what) const {
  if (error == kSuccess) return absl::OkStatus();
  const auto code = static_cast<cudaError_t>(error);
  return absl::UnavailableError(absl::StrCat("cuda:", info_.ordinal, " (", info_.name,
                                             ") failed while ", what, ": ",
                                             cudaGetErrorString(code), " (", error, ")"));
}

}  // namespace heddle::kernels::cuda
