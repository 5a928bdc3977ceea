// The CUDA runtime's functions on a PTX machine, for programs that are linked with this in place of
// libcudart: as many of them as heddle_kernels_cuda asks the linker for. One device, one context;
// what a device would refuse is refused, what is a mistake although a device takes it is, too.
// Explanations go to stderr, as the runtime's errors are numbers.
//
// When things happen: on a late machine (MachineOptions::late) what a stream is given happens when
// something waits for it and no sooner, else at once. Both are among the orders that streams,
// events and edges of graphs allow; a missing wait or a host buffer that is used again too early
// shows in one of them.
//
// Environment: HEDDLE_PTX_EARLY=1: not late. HEDDLE_PTX_COUNTS=FILE: at exit, a JSON line for each
// kernel that was launched. HEDDLE_PTX_ACCESSES=FILE: one for each of its loads and stores, with
// the lines of source it came from if nvcc was told -lineinfo. HEDDLE_PTX_LOST=N: after N calls of
// the runtime the device is lost. Thread-safety: all calls are serialised.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "tests/gpu/ptx/machine.h"
#include "tests/gpu/ptx/program.h"

namespace heddle::ptx {

// The fat binary of one source, as registered; it is parsed when one of its kernels is needed.
struct Registered {
  const void* wrapper = nullptr;
  std::optional<absl::StatusOr<Module>> module;
};

// A kernel with all that its launch needs; parameters are copied.
struct PreparedLaunch {
  const CUkern_st* kernel = nullptr;
  LaunchConfig config;
  bool is_early = false;  // may begin before what it depends on has ended
  struct alignas(64) Line {
    uint8_t bytes[64];
  };
  std::vector<Line> params;
};

// The number of items that a stream was given, and of those that have happened.
struct StreamQueue {
  struct Item {
    std::function<void()> work;
    std::shared_ptr<StreamQueue> after;  // instead of work: this stream's first `place` items
    int64_t place = 0;
  };
  std::deque<Item> items;
  int64_t given = 0;
  int64_t done = 0;
};

// Bits of the events' clock, shared with the items that set them.
struct Stamp {
  std::optional<std::chrono::steady_clock::time_point> passed;
};

}  // namespace heddle::ptx

// Types that the runtime's handles point to; the names are the runtime's own.
struct CUkern_st {
  heddle::ptx::Registered* source = nullptr;
  std::string name;
  const heddle::ptx::Kernel* kernel = nullptr;      // once it was asked for
  bool waits = false;                               // for what it depends on: griddepcontrol.wait
  std::optional<int32_t> max_dynamic_shared_bytes;  // that cudaFuncSetAttribute allowed
};

struct CUstream_st {
  // The last item was not a kernel: it is undocumented what it means to begin before its end.
  bool follows_other = false;
  std::shared_ptr<heddle::ptx::StreamQueue> queue = std::make_shared<heddle::ptx::StreamQueue>();
};

struct CUevent_st {
  bool is_timed = false;
  std::shared_ptr<heddle::ptx::StreamQueue> queue;  // nullptr: never recorded
  int64_t place = 0;
  std::shared_ptr<heddle::ptx::Stamp> stamp;
};

struct CUgraphNode_st {
  CUgraph_st* graph = nullptr;
  size_t index = 0;
  heddle::ptx::PreparedLaunch launch;
};

struct CUgraph_st {
  std::vector<std::unique_ptr<CUgraphNode_st>> nodes;
  std::set<std::pair<size_t, size_t>> edges;  // from, to
};

struct CUgraphExec_st {
  const CUgraph_st* graph = nullptr;  // that it was made of
  std::vector<heddle::ptx::PreparedLaunch> launches;
  std::vector<std::vector<size_t>> orders;  // that launches take in turns
  size_t launched = 0;
};

namespace heddle::ptx {

template <typename T>
using Handles = std::vector<std::unique_ptr<T>>;  // in the order in which they were made

class Context {
 public:
  // The context of this process; made by the first object that registers its code.
  static Context& Get();
  ~Context();

  std::mutex& mutex() { return mutex_; }
  Machine& machine() { return machine_; }
  // The device's properties, for tests that need another than an H200.
  struct Device {
    int major = 9, minor = 0, num_multiprocessors = 132;
    bool has_code = true;  // whether the program holds code for it
  };
  Device device;

  Registered* Register(const void* wrapper);
  void AddKernel(Registered* source, const void* host_function, const char* name);
  // nullptr: no object has registered such a function.
  CUkern_st* FindKernel(const void* host_function);
  // Parses the kernel's module, if it has not been.
  cudaError_t Load(CUkern_st& kernel);

  // Device memory counts against kTotalBytes.
  static constexpr int64_t kTotalBytes = int64_t{8} << 30;
  cudaError_t Allocate(bool is_pinned, int64_t bytes, void** data);
  cudaError_t Free(bool is_pinned, void* data);
  int64_t free_bytes() const { return kTotalBytes - device_bytes_; }
  // The allocation that all of [data, data + bytes) lies in.
  enum class Place : uint8_t { kPageable, kPinned, kDevice, kOutside };
  Place PlaceOf(const void* data, int64_t bytes) const;

  Handles<CUstream_st> streams;
  Handles<CUevent_st> events;
  Handles<CUgraph_st> graphs;
  Handles<CUgraphExec_st> executables;

  // Adds an item of work to the stream.
  void Enqueue(CUstream_st& stream, std::function<void()> work);
  // The stream continues when the event has been passed.
  void EnqueueWait(CUstream_st& stream, const CUevent_st& event);
  void RunUpTo(StreamQueue& queue, int64_t place);
  void RunAll();

  void Run(const PreparedLaunch& launch);

  // After a fault in a kernel every call fails with the same error.
  cudaError_t lost() const { return lost_; }

  // A call of the runtime that fails, for tests: the one after `after` others. Negative: none.
  struct Refusal {
    int64_t after = -1;
    cudaError_t error = cudaErrorUnknown;
    bool is_lost = false;  // and all calls from then on
  };
  // Applies to later calls. has_refused: whether a call has failed because of it.
  void set_refusal(const Refusal& refusal);
  bool has_refused() const { return has_refused_; }
  // Begins every call: cudaSuccess, or the reason for its failure.
  cudaError_t BeginCall();
  int64_t attribute_requests = 0;  // calls of cudaFuncSetAttribute
  // Resets the context as in a new process: nothing is allocated, nothing is lost.
  void Restart();

 private:
  struct Allocation {
    int64_t bytes = 0;
    bool is_pinned = false;
  };
  Context();
  void WriteCounts();
  void WriteAccesses();

  std::mutex mutex_;
  Machine machine_;
  std::string counts_path_, accesses_path_;
  std::deque<Registered> registered_;
  std::map<const void*, std::unique_ptr<CUkern_st>> kernels_;  // by host function
  std::map<const uint8_t*, Allocation> allocations_;
  int64_t device_bytes_ = 0;
  cudaError_t lost_ = cudaSuccess;
  Refusal refusal_;
  bool has_refused_ = false;
};

// The calling thread's last error, for cudaGetLastError.
cudaError_t& LastError();

// A kernel's name as its source has it.
std::string Demangled(const std::string& name);

// Says why on stderr; returns `error`.
cudaError_t Refuse(cudaError_t error, const std::string& why);

// Runs what a function of the runtime does, with the context locked.
template <typename Body>
cudaError_t Call(Body body) {
  Context& context = Context::Get();
  const std::lock_guard lock(context.mutex());
  cudaError_t error = context.BeginCall();
  if (error == cudaSuccess) error = body(context);
  if (context.lost() != cudaSuccess) error = context.lost();
  if (error != cudaSuccess) LastError() = error;
  return error;
}

template <typename T>
bool IsLive(const Handles<T>& handles, const T* handle) {
  return std::any_of(handles.begin(), handles.end(),
                     [handle](const auto& live) { return live.get() == handle; });
}

template <typename T>
T* Add(Handles<T>& handles) {
  return handles.emplace_back(std::make_unique<T>()).get();
}

// cudaErrorInvalidResourceHandle if there is no such handle.
template <typename T>
cudaError_t Destroy(Handles<T>& handles, const T* handle) {
  const auto is_it = [handle](const auto& live) { return live.get() == handle; };
  return std::erase_if(handles, is_it) == 1 ? cudaSuccess : cudaErrorInvalidResourceHandle;
}

// The inputs of a launch.
struct LaunchRequest {
  CUkern_st* kernel = nullptr;
  dim3 grid, block;
  size_t dynamic_shared_bytes = 0;
  void** params = nullptr;  // one pointer for each of the kernel's
  bool is_early = false;
};
// Checks the launch as a device would, and that a kernel which may begin early waits.
cudaError_t Prepare(Context& context, const LaunchRequest& request, PreparedLaunch* launch);
cudaError_t CheckWaits(const CUkern_st& kernel);

}  // namespace heddle::ptx
