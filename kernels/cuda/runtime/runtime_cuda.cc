#include <cuda.h>
#include <cuda_runtime_api.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "kernels/cuda/runtime/find_code.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/runtime/stream.h"

namespace heddle::kernels::cuda {
namespace {

#if defined(HEDDLE_CUDA_SM90A)
constexpr bool kBuiltForHopper = true;
#else
constexpr bool kBuiltForHopper = false;
#endif

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

// The result points into `arguments`.
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

// Makes `to` depend on `from`: on its end or, if `to` is early, on all its blocks having called
// AllowNext.
Error AddEdge(cudaGraph_t graph, cudaGraphNode_t from, cudaGraphNode_t to, bool early) {
  cudaGraphEdgeData edge = {};
  if (early) {
    edge.type = cudaGraphDependencyTypeProgrammatic;
    edge.from_port = cudaGraphKernelNodePortProgrammatic;
  }
#if CUDART_VERSION >= 13000
  return cudaGraphAddDependencies(graph, &from, &to, &edge, 1);
#else
  return cudaGraphAddDependencies_v2(graph, &from, &to, &edge, 1);
#endif
}

// Without `early` every launch waits for earlier ones to end.
Error Build(const Tape& tape, bool early, CudaGraph* made) {
  Error error = cudaGraphCreate(&made->graph, 0);
  for (size_t i = 0; error == kSuccess && i < tape.launches().size(); ++i) {
    void* arguments[1];
    const cudaKernelNodeParams params = NodeOf(tape, i, arguments);
    cudaGraphNode_t node = nullptr;
    error = cudaGraphAddKernelNode(&node, made->graph, nullptr, 0, &params);
    made->nodes.push_back(node);
    const Tape::Launch& launch = tape.launches()[i];
    for (const int other : {launch.before, launch.after}) {
      if (other < 0 || error != kSuccess) continue;
      error = AddEdge(made->graph, made->nodes[static_cast<size_t>(other)], node,
                      early && launch.shape.early);
    }
  }
  return error == kSuccess ? cudaGraphInstantiate(&made->exec, made->graph, 0) : error;
}

cudaStream_t StreamOf(Stream queue) { return static_cast<cudaStream_t>(queue->stream); }
cudaStream_t StreamOf(const LaunchQueue& queue) { return StreamOf(&queue); }

// Without this, a missing driver and an old one both read as "error 35".
absl::Status CheckDriver() {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess) driver = 0;
  return CheckDriverVersion(driver, CUDART_VERSION);
}

absl::StatusOr<DeviceInfo> Describe(int32_t ordinal) {
  int count = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess && error != cudaErrorNoDevice) {
    return absl::UnavailableError(
        absl::StrCat("the NVIDIA driver does not answer: ", cudaGetErrorString(error), " (", error,
                     ")", AdviceFor(error)));
  }
  HEDDLE_RETURN_IF_ERROR(CheckOrdinal(ordinal, count));
  cudaDeviceProp properties;
  error = cudaGetDeviceProperties(&properties, ordinal);
  if (error != cudaSuccess) {
    return absl::UnavailableError(absl::StrCat("cuda:", ordinal,
                                               " does not answer: ", cudaGetErrorString(error),
                                               " (", error, ")", AdviceFor(error)));
  }
  return DeviceInfo{
      .name = properties.name,
      .ordinal = ordinal,
      .major = properties.major,
      .minor = properties.minor,
      .num_multiprocessors = properties.multiProcessorCount,
      .total_bytes = static_cast<int64_t>(properties.totalGlobalMem),
      .max_shared_bytes = static_cast<int32_t>(properties.sharedMemPerBlockOptin),
      .has_hopper_code = kBuiltForHopper && properties.major == 9 && properties.minor == 0};
}

// Without this, missing code for the architecture would show at the first launch only.
absl::Status CheckCode(const Runtime& runtime) {
  const Error error = FindCode();
  if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction) {
    return NoCodeFor(runtime.info(), HEDDLE_CUDA_CODE);
  }
  return runtime.ToStatus(error, "looking for its code");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Runtime>> Runtime::Open(int32_t ordinal) {
  HEDDLE_RETURN_IF_ERROR(CheckDriver());
  HEDDLE_ASSIGN_OR_RETURN(DeviceInfo info, Describe(ordinal));
  HEDDLE_RETURN_IF_ERROR(CheckCapability(info));
  std::unique_ptr<Runtime> runtime(new Runtime);
  runtime->info_ = std::move(info);
  HEDDLE_RETURN_IF_ERROR(runtime->ToStatus(cudaSetDevice(ordinal), "selecting the device"));
  HEDDLE_RETURN_IF_ERROR(CheckCode(*runtime));
  for (int lane = 0; lane < kLanes; ++lane) {
    cudaStream_t stream = nullptr;
    HEDDLE_RETURN_IF_ERROR(runtime->ToStatus(
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream"));
    runtime->queues_[lane].stream = stream;
    runtime->queues_[lane].max_shared_bytes = runtime->info_.max_shared_bytes;
    // Kernels built for older devices would not wait.
    runtime->queues_[lane].early = runtime->info_.has_hopper_code;
    cudaEvent_t event = nullptr;
    HEDDLE_RETURN_IF_ERROR(runtime->ToStatus(
        cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "creating an event"));
    runtime->signals_[lane] = event;
  }
  cudaStream_t copies = nullptr;
  HEDDLE_RETURN_IF_ERROR(runtime->ToStatus(
      cudaStreamCreateWithFlags(&copies, cudaStreamNonBlocking), "creating a stream"));
  runtime->copies_ = copies;
  for (void*& mark : runtime->marks_) {
    cudaEvent_t event = nullptr;
    HEDDLE_RETURN_IF_ERROR(runtime->ToStatus(cudaEventCreate(&event), "creating an event"));
    mark = event;
  }
  return runtime;
}

Runtime::~Runtime() {
  if (copies_ != nullptr) cudaStreamDestroy(static_cast<cudaStream_t>(copies_));
  for (void* mark : marks_) {
    if (mark != nullptr) cudaEventDestroy(static_cast<cudaEvent_t>(mark));
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    if (signals_[lane] != nullptr) cudaEventDestroy(static_cast<cudaEvent_t>(signals_[lane]));
    if (queues_[lane].stream != nullptr) cudaStreamDestroy(StreamOf(queues_[lane]));
  }
}

absl::Status Runtime::Signal(int lane) {
  if (queues_[lane].tape != nullptr) {
    queues_[lane].tape->Signal(lane);
    return absl::OkStatus();
  }
  return ToStatus(
      cudaEventRecord(static_cast<cudaEvent_t>(signals_[lane]), StreamOf(queues_[lane])),
      "marking a place on a stream");
}

absl::Status Runtime::Wait(int lane, int on) {
  if (queues_[lane].tape != nullptr) {
    queues_[lane].tape->Wait(lane, on);
    return absl::OkStatus();
  }
  queues_[lane].joins = true;
  return ToStatus(
      cudaStreamWaitEvent(StreamOf(queues_[lane]), static_cast<cudaEvent_t>(signals_[on]), 0),
      "joining streams");
}

absl::Status Runtime::Mark(int mark) {
  FollowOther();
  return ToStatus(cudaEventRecord(static_cast<cudaEvent_t>(marks_[mark]), StreamOf(queues_[0])),
                  "marking a place on a stream");
}

absl::Status Runtime::WaitForMark(int mark) {
  return ToStatus(cudaEventSynchronize(static_cast<cudaEvent_t>(marks_[mark])), "running a step");
}

absl::StatusOr<int64_t> Runtime::NsBetween(int from, int to) const {
  float milliseconds = 0;
  HEDDLE_RETURN_IF_ERROR(
      ToStatus(cudaEventElapsedTime(&milliseconds, static_cast<cudaEvent_t>(marks_[from]),
                                    static_cast<cudaEvent_t>(marks_[to])),
               "reading the clock of a step"));
  return static_cast<int64_t>(double{milliseconds} * 1e6);
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
    cudaGetLastError();  // the error is not sticky: forget it
    return OutOfDeviceMemory(info_, bytes, FreeBytes(), allocated_bytes_);
  }
  HEDDLE_RETURN_IF_ERROR(ToStatus(error, "allocating device memory"));
  allocated_bytes_ += bytes;
  FollowOther();
  error = cudaMemsetAsync(data, 0, static_cast<size_t>(bytes), StreamOf(queues_[0]));
  if (error == cudaSuccess) return data;
  FreeDevice(data, bytes);
  return ToStatus(error, "clearing device memory");
}

void Runtime::FreeDevice(void* data, int64_t bytes) {
  if (data == nullptr) return;
  Bind();          // a thread without a device would take the first one
  cudaFree(data);  // waits for kernels that may still use it
  allocated_bytes_ -= bytes;
}

absl::StatusOr<void*> Runtime::AllocatePinned(int64_t bytes) {
  void* data = nullptr;
  const cudaError_t error = cudaMallocHost(&data, static_cast<size_t>(bytes));
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // the error is not sticky: forget it
    return OutOfPinnedMemory(info_, bytes);
  }
  HEDDLE_RETURN_IF_ERROR(ToStatus(error, "allocating page-locked host memory"));
  return data;
}

void Runtime::FreePinned(void* data) {
  if (data != nullptr) cudaFreeHost(data);
}

absl::Status Runtime::CopyToDevice(void* to, const void* from, int64_t bytes) {
  FollowOther();
  return ToStatus(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice,
                                  StreamOf(queues_[0])),
                  "copying to the device");
}

absl::Status Runtime::CopyToHost(void* to, const void* from, int64_t bytes) {
  FollowOther();
  return ToStatus(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost,
                                  StreamOf(queues_[0])),
                  "copying from the device");
}

absl::Status Runtime::CopyOnDevice(void* to, const void* from, int64_t bytes) {
  FollowOther();
  return ToStatus(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice,
                                  StreamOf(queues_[0])),
                  "copying on the device");
}

absl::Status Runtime::CopyBeside(Way way, void* to, const void* from, int64_t bytes) {
  const bool to_device = way == Way::kToDevice;
  const char* what = to_device ? "copying to the device" : "copying from the device";
  const auto stream = static_cast<cudaStream_t>(copies_);
  HEDDLE_RETURN_IF_ERROR(
      ToStatus(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes),
                               to_device ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost, stream),
               what));
  return ToStatus(cudaStreamSynchronize(stream), what);
}

absl::Status Runtime::Synchronize() {
  return ToStatus(cudaStreamSynchronize(StreamOf(queues_[0])), "running a step");
}

// The last request holds for all later launches of the kernel, including those that a tape keeps:
// so it requests all that there is.
Error PrepareKernel(const void* kernel, const LaunchShape& shape, Stream queue) {
  constexpr int kUsualSharedBytes = 48 << 10;
  const bool is_large = shape.shared_bytes > kUsualSharedBytes;
  if (!is_large && !queue->one_split) return kSuccess;
  if (queue->prepared->Has(kernel)) return kSuccess;
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, queue->max_shared_bytes);
  if (error != cudaSuccess) return static_cast<Error>(error);
  if (queue->one_split) {  // a refusal costs speed at most
    cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                         cudaSharedmemCarveoutMaxShared);
  }
  queue->prepared->Add(kernel);
  return kSuccess;
}

Error LaunchKernel(const void* kernel, Tape::Caller, const LaunchShape& shape, void* stream,
                   const void* params, size_t) {
  void* arguments[] = {const_cast<void*>(params)};
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = GridOf(shape);
  config.blockDim = BlockOf(shape);
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &early;
  config.numAttrs = shape.early ? 1 : 0;
  return cudaLaunchKernelExC(&config, kernel, arguments);
}

// The driver's function, found without linking the driver; nullptr if it is missing.
decltype(&cuTensorMapEncodeTiled) FindTensorMapEncoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                             12000, cudaEnableDefault, &found);
#else
  const cudaError_t error =
      cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &found);
#endif
  const bool good = error == cudaSuccess && found == cudaDriverEntryPointSuccess;
  return good ? reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function) : nullptr;
}

Error EncodeTensorMap(const TiledMatrix& matrix, TensorMap* map) {
  static const auto encode = FindTensorMapEncoder();
  if (encode == nullptr) return cudaErrorNotSupported;
  static_assert(sizeof(TensorMap) == sizeof(CUtensorMap));
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(matrix.cols),
                              static_cast<cuuint64_t>(matrix.rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(matrix.row_bytes())};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(matrix.box_cols()),
                            static_cast<cuuint32_t>(matrix.box_rows)};
  const cuuint32_t steps[] = {1, 1};
  const CUresult result = encode(
      reinterpret_cast<CUtensorMap*>(map),
      matrix.element_bytes == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_UINT16, 2,
      const_cast<void*>(matrix.data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

// Waits may reach further than the tape says: to the other lane's last signal so far.
absl::Status Runtime::LaunchAll(const Tape& tape) {
  HEDDLE_CHECK(queues_[0].tape == nullptr, "a tape is played onto itself");
  bool forked = false;
  for (size_t i = 0; i < tape.launches().size(); ++i) {
    const Tape::Launch& launch = tape.launches()[i];
    if (launch.after >= 0) HEDDLE_RETURN_IF_ERROR(Wait(launch.lane, 1 - launch.lane));
    HEDDLE_RETURN_IF_ERROR(
        ToStatus(LaunchKernel(launch.kernel, launch.call, launch.shape, queues_[launch.lane].stream,
                              tape.params(i), launch.params_bytes),
                 "launching a kernel"));
    if (launch.signals) HEDDLE_RETURN_IF_ERROR(Signal(launch.lane));
    forked = forked || launch.lane == 1;
  }
  if (!forked) return absl::OkStatus();
  HEDDLE_RETURN_IF_ERROR(Signal(1));
  return Wait(0, 1);
}

absl::StatusOr<Runtime::Graph> Runtime::MakeGraph(const Tape& tape) {
  auto made = std::make_unique<CudaGraph>();
  Error error = Build(tape, has_early_edges_, made.get());
  if (error != kSuccess && has_early_edges_) {  // drivers before 12.3 do not know such edges
    cudaGetLastError();
    has_early_edges_ = false;
    made = std::make_unique<CudaGraph>();
    error = Build(tape, has_early_edges_, made.get());
  }
  HEDDLE_RETURN_IF_ERROR(ToStatus(error, "making a graph"));
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
  FollowOther();
  return ToStatus(cudaGraphLaunch(static_cast<CudaGraph*>(graph)->exec, StreamOf(queues_[0])),
                  "launching a graph");
}

void Runtime::FreeGraph(Graph graph) { delete static_cast<CudaGraph*>(graph); }

absl::Status Runtime::ToStatus(Error error, const char* what) const {
  if (error == kSuccess) return absl::OkStatus();
  const auto code = static_cast<cudaError_t>(error);
  const std::string message =
      absl::StrCat("cuda:", info_.ordinal, " (", info_.name, ") failed while ", what, ": ",
                   cudaGetErrorString(code), " (", error, ")", AdviceFor(error));
  return code == cudaErrorMemoryAllocation ? absl::ResourceExhaustedError(message)
                                           : absl::UnavailableError(message);
}

}  // namespace heddle::kernels::cuda
