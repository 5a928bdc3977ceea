// The runtime of emulated devices: everything is host memory and happens at once, or on a late
// machine when it is waited for. Launches are held back until some more have come, or until
// something else is to happen, so that those that may begin early can (emulator.h). Each device's
// work is done by the thread that gives it or waits for it, so that devices run at the same time.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <mutex>
#include <new>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/cuda/runtime/stream.h"
#include "tests/emulate/emulator.h"
#include "tests/emulate/machine.h"
#include "tests/emulate/stream_port.h"

namespace heddle::kernels::cuda {
namespace {

// Few multiprocessors, so that plans made for them split small work in interesting ways.
constexpr int32_t kMultiprocessors = 6;
constexpr std::align_val_t kAlignment{256};  // as cudaMalloc aligns
constexpr int32_t kBuiltWith = 13000;
constexpr int kMostBlocks = 65535;      // along a grid's y and z
constexpr Error kIllegalAddress = 700;  // cudaErrorIllegalAddress

// Memory from here on comes from the system in pages, which are zeros and cost nothing until they
// are touched. Not where AddressSanitizer is to see what is beyond its ends.
#if defined(__SANITIZE_ADDRESS__)
constexpr int64_t kLeastMapped = std::numeric_limits<int64_t>::max();
#else
constexpr int64_t kLeastMapped = int64_t{1} << 20;
#endif

// Launches that are held back. A launch may begin before the previous two have run, because
// launches let the next one begin before they have waited for their own predecessor.
constexpr size_t kHeldLaunches = 2;

// A kernel and its copy of the parameters.
struct HeldLaunch {
  std::vector<std::byte> params;
  emulate::Launching launching;

  HeldLaunch(const void* kernel, Tape::Caller call, const LaunchShape& shape,
             std::vector<std::byte> arguments)
      : params(std::move(arguments)),
        launching({shape.grid_x, shape.grid_y, shape.grid_z}, shape.threads, shape.shared_bytes,
                  shape.early, [this, kernel, call] { call(kernel, params.data()); }) {}
};

// A device that somebody has opened.
struct DeviceState {
  int32_t ordinal = 0;
  int64_t launches = 0;
  bool is_faulty = false;
  bool has_finding = false;  // a kernel had a finding
  std::deque<std::unique_ptr<HeldLaunch>> held;
  std::deque<std::function<void()>> to_come;  // pending work of a late machine
};

// The state that all devices share.
struct Machines {
  emulate::Machine machine;
  std::atomic<int64_t> graph_changes{0};
  std::atomic<int64_t> graph_launches{0};
  std::atomic<int64_t> second_lane_launches{0};
  std::mutex mutex;
  std::vector<DeviceState*> devices;                              // GUARDED_BY(mutex)
  std::vector<std::pair<const uint8_t*, int64_t>> pinned_blocks;  // GUARDED_BY(mutex)
};

Machines& All() {
  static auto* state = new Machines;  // never destroyed: devices may outlive main's statics
  return *state;
}

// The ordinal of the calling thread's device, as CUDA keeps it.
thread_local int32_t bound_ordinal = 0;

// A lane of a device.
struct EmulatedStream {
  emulate::StreamPort port;  // first: libraries find it here
  DeviceState* device = nullptr;
  bool is_second = false;
  bool follows_launch = true;  // the last thing that it was given, if any, was a launch
};

EmulatedStream& StreamOf(const LaunchQueue& queue) {
  return *static_cast<EmulatedStream*>(queue.stream);
}
DeviceState& DeviceOf(const LaunchQueue& queue) { return *StreamOf(queue).device; }

// Notes that something other than a launch was given to the lane.
void NoteOther(const LaunchQueue& queue) { StreamOf(queue).follows_launch = false; }

// The limit per block: CUDA C++ Programming Guide, "Technical Specifications per Compute
// Capability".
int32_t MaxSharedBytes(const emulate::Machine& machine) {
  const int32_t capability = 10 * machine.compute_major + machine.compute_minor;
  const bool is_small = capability == 86 || capability == 89 || capability >= 120;
  return (is_small ? 99 : capability < 90 ? 163 : 227) << 10;
}

void* TakeZeros(int64_t bytes) {
  const auto size = static_cast<size_t>(bytes);
  if (bytes < kLeastMapped) return std::memset(::operator new(size, kAlignment), 0, size);
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  HEDDLE_CHECK(data != MAP_FAILED, "no memory for the emulated device");
  return data;
}

void GiveBack(void* data, int64_t bytes) {
  if (bytes < kLeastMapped) return ::operator delete(data, kAlignment);
  munmap(data, static_cast<size_t>(bytes));
}

bool IsPinned(const void* data) {
  const auto* at = static_cast<const uint8_t*>(data);
  const std::lock_guard lock(All().mutex);
  const auto& blocks = All().pinned_blocks;
  return std::any_of(blocks.begin(), blocks.end(), [at](const auto& block) {
    return at >= block.first && at < block.first + block.second;
  });
}

void RunFirstHeld(DeviceState& device) {
  if (!device.held.front()->launching.Finish()) device.has_finding = true;
  device.held.pop_front();
}

void RunHeld(DeviceState& device) {
  while (!device.held.empty()) RunFirstHeld(device);
}

// Performs pending work until `until` is true.
void CatchUp(DeviceState& device, const std::function<bool()>& until) {
  std::deque<std::function<void()>>& to_come = device.to_come;
  while (!to_come.empty() && !until()) {
    const std::function<void()> next = std::move(to_come.front());
    to_come.pop_front();
    next();
  }
  RunHeld(device);
}

void CatchUp(DeviceState& device) {
  CatchUp(device, [] { return false; });
}

// Behind a library's work, which waits for other devices, all is pending.
void InTurn(DeviceState& device, std::function<void()> work) {
  if (All().machine.is_late || !device.to_come.empty()) {
    device.to_come.push_back(std::move(work));
  } else {
    work();
  }
}

// Enqueues work after all launches so far.
void Enqueue(DeviceState& device, std::function<void()> work) {
  InTurn(device, [&device, work = std::move(work)] {
    RunHeld(device);
    work();
  });
}

// Work of a library: pending until somebody waits for the device, as it may wait for others.
void EnqueueForLibrary(emulate::StreamPort* port, void (*work)(void*), void* argument) {
  auto& stream = *reinterpret_cast<EmulatedStream*>(port);
  stream.follows_launch = false;
  DeviceState& device = *stream.device;
  device.to_come.push_back([&device, work, argument] {
    RunHeld(device);
    work(argument);
  });
}

// The status of a call: nothing works after a fault.
absl::Status Working(const Runtime& runtime, const char* what) {
  DeviceState& device = DeviceOf(*runtime.stream());
  const Error finding = std::exchange(device.has_finding, false) ? kEmulatedFault : kSuccess;
  return runtime.ToStatus(device.is_faulty ? kIllegalAddress : finding, what);
}

void StartKernel(DeviceState& device, const void* kernel, Tape::Caller call,
                 const LaunchShape& shape, std::vector<std::byte> params) {
  const emulate::Machine& machine = All().machine;
  const int64_t limit = machine.launches_before_fault;
  const bool may_fail = machine.faulty_ordinal < 0 || machine.faulty_ordinal == device.ordinal;
  device.is_faulty = device.is_faulty || (may_fail && limit >= 0 && device.launches >= limit);
  ++device.launches;
  if (device.is_faulty) return;
  if (!shape.early) RunHeld(device);
  device.held.push_back(std::make_unique<HeldLaunch>(kernel, call, shape, std::move(params)));
  if (shape.early) device.held.back()->launching.Begin();
  while (device.held.size() > kHeldLaunches) RunFirstHeld(device);
}

}  // namespace

namespace emulate {

void SetMachine(const Machine& machine) {
  CatchUp();
  Machines& state = All();
  state.machine = machine;
  state.graph_changes = state.graph_launches = state.second_lane_launches = 0;
  const std::lock_guard lock(state.mutex);
  for (DeviceState* device : state.devices) {
    device->launches = 0;
    device->is_faulty = device->has_finding = false;
  }
}

void CatchUp() {
  std::vector<DeviceState*> devices;
  {
    const std::lock_guard lock(All().mutex);
    devices = All().devices;
  }
  for (DeviceState* device : devices) cuda::CatchUp(*device);
}

void CatchUp(const LaunchQueue* queue) { cuda::CatchUp(DeviceOf(*queue)); }

int64_t GraphChanges() { return All().graph_changes; }
int64_t GraphLaunches() { return All().graph_launches; }
int64_t SecondLaneLaunches() { return All().second_lane_launches; }

int64_t Launches() {
  const std::lock_guard lock(All().mutex);
  return std::accumulate(
      All().devices.begin(), All().devices.end(), int64_t{0},
      [](int64_t sum, const DeviceState* device) { return sum + device->launches; });
}

int64_t PinnedBytes() {
  const std::lock_guard lock(All().mutex);
  const auto& blocks = All().pinned_blocks;
  return std::accumulate(blocks.begin(), blocks.end(), int64_t{0},
                         [](int64_t sum, const auto& block) { return sum + block.second; });
}

const Machine& CurrentMachine() { return All().machine; }

}  // namespace emulate

absl::StatusOr<std::unique_ptr<Runtime>> Runtime::Open(int32_t ordinal) {
  const emulate::Machine& machine = All().machine;
  HEDDLE_RETURN_IF_ERROR(CheckDriverVersion(machine.driver, kBuiltWith));
  HEDDLE_RETURN_IF_ERROR(CheckOrdinal(ordinal, machine.device_count));
  std::unique_ptr<Runtime> runtime(new Runtime);
  runtime->info_ = {.name = "emulated",
                    .ordinal = ordinal,
                    .major = machine.compute_major,
                    .minor = machine.compute_minor,
                    .num_multiprocessors = kMultiprocessors,
                    .total_bytes = machine.total_bytes,
                    .max_shared_bytes = MaxSharedBytes(machine),
                    .has_hopper_code = machine.compute_major == 9};
  HEDDLE_RETURN_IF_ERROR(CheckCapability(runtime->info_));
  if (!machine.has_code) return NoCodeFor(runtime->info_, "80, 90a");
  auto* device = new DeviceState{.ordinal = ordinal};
  for (LaunchQueue& queue : runtime->queues_) {
    queue.early = machine.compute_major == 9;
    queue.stream = new EmulatedStream{
        .port = {EnqueueForLibrary}, .device = device, .is_second = &queue != &runtime->queues_[0]};
  }
  bound_ordinal = ordinal;
  const std::lock_guard lock(All().mutex);
  All().devices.push_back(device);
  return runtime;
}

Runtime::~Runtime() {
  if (queues_[0].stream == nullptr) return;  // was not opened
  DeviceState* device = &DeviceOf(queues_[0]);
  CatchUp(*device);
  for (LaunchQueue& queue : queues_) delete &StreamOf(queue);
  const std::lock_guard lock(All().mutex);
  std::erase(All().devices, device);
  delete device;
}

void Runtime::Bind() const { bound_ordinal = info_.ordinal; }

int64_t Runtime::FreeBytes() const {
  return info_.total_bytes - All().machine.taken_bytes - allocated_bytes_;
}

absl::StatusOr<void*> Runtime::AllocateDevice(int64_t bytes) {
  HEDDLE_RETURN_IF_ERROR(Working(*this, "allocating device memory"));
  if (bytes > FreeBytes()) {
    return OutOfDeviceMemory(info_, bytes, FreeBytes(), allocated_bytes_);
  }
  void* data = TakeZeros(bytes);
  FollowOther();
  NoteOther(queues_[0]);
  allocated_bytes_ += bytes;
  return data;
}

void Runtime::FreeDevice(void* data, int64_t bytes) {
  if (data == nullptr) return;
  CatchUp(DeviceOf(queues_[0]));  // as cudaFree does
  GiveBack(data, bytes);
  allocated_bytes_ -= bytes;
}

absl::StatusOr<void*> Runtime::AllocatePinned(int64_t bytes) {
  const int64_t limit = All().machine.pinned_bytes;
  if (limit >= 0 && emulate::PinnedBytes() + bytes > limit) return OutOfPinnedMemory(info_, bytes);
  void* data = TakeZeros(bytes);
  const std::lock_guard lock(All().mutex);
  All().pinned_blocks.emplace_back(static_cast<const uint8_t*>(data), bytes);
  return data;
}

void Runtime::FreePinned(void* data) {
  int64_t bytes = 0;
  {
    const std::lock_guard lock(All().mutex);
    auto& blocks = All().pinned_blocks;
    const auto found = std::find_if(blocks.begin(), blocks.end(),
                                    [data](const auto& block) { return block.first == data; });
    if (found == blocks.end()) return;
    bytes = found->second;
    blocks.erase(found);
  }
  GiveBack(data, bytes);
}

absl::Status Runtime::CopyToDevice(void* to, const void* from, int64_t bytes) {
  HEDDLE_RETURN_IF_ERROR(Working(*this, "copying to the device"));
  FollowOther();
  NoteOther(queues_[0]);
  Enqueue(DeviceOf(queues_[0]), [=] { std::memcpy(to, from, static_cast<size_t>(bytes)); });
  if (!IsPinned(from)) CatchUp(DeviceOf(queues_[0]));
  return absl::OkStatus();
}

absl::Status Runtime::CopyToHost(void* to, const void* from, int64_t bytes) {
  HEDDLE_RETURN_IF_ERROR(Working(*this, "copying from the device"));
  FollowOther();
  NoteOther(queues_[0]);
  Enqueue(DeviceOf(queues_[0]), [=] { std::memcpy(to, from, static_cast<size_t>(bytes)); });
  if (!IsPinned(to)) CatchUp(DeviceOf(queues_[0]));
  return absl::OkStatus();
}

absl::Status Runtime::CopyOnDevice(void* to, const void* from, int64_t bytes) {
  HEDDLE_RETURN_IF_ERROR(Working(*this, "copying on the device"));
  FollowOther();
  NoteOther(queues_[0]);
  Enqueue(DeviceOf(queues_[0]), [=] { std::memcpy(to, from, static_cast<size_t>(bytes)); });
  return absl::OkStatus();
}

// Copies before all pending work, so that a missing wait shows.
absl::Status Runtime::CopyBeside(Way way, void* to, const void* from, int64_t bytes) {
  HEDDLE_RETURN_IF_ERROR(
      Working(*this, way == Way::kToDevice ? "copying to the device" : "copying from the device"));
  std::memcpy(to, from, static_cast<size_t>(bytes));
  return absl::OkStatus();
}

absl::Status Runtime::Synchronize() {
  CatchUp(DeviceOf(queues_[0]));
  return Working(*this, "running a step");
}

absl::Status Runtime::Mark(int mark) {
  FollowOther();
  NoteOther(queues_[0]);
  mark_ns_[mark] = 0;
  Enqueue(DeviceOf(queues_[0]), [this, mark, time = ++marked_[mark]] {
    if (time != marked_[mark]) return;  // set anew since
    mark_ns_[mark] = std::chrono::duration_cast<std::chrono::nanoseconds>(
                         std::chrono::steady_clock::now().time_since_epoch())
                         .count();
  });
  return absl::OkStatus();  // faults show when it is waited for
}

absl::Status Runtime::WaitForMark(int mark) {
  CatchUp(DeviceOf(queues_[0]), [this, mark] { return mark_ns_[mark] != 0; });
  return Working(*this, "running a step");
}

absl::StatusOr<int64_t> Runtime::NsBetween(int from, int to) const {
  return mark_ns_[to] - mark_ns_[from];
}

// Faults and findings show when the stream is waited for, not here.
Error LaunchKernel(const void* kernel, Tape::Caller call, const LaunchShape& shape, void* stream,
                   const void* params, size_t params_bytes) {
  auto& own = *static_cast<EmulatedStream*>(stream);
  HEDDLE_CHECK(own.follows_launch || !shape.early,
               "a launch may begin before the end of something that is no launch");
  HEDDLE_CHECK(own.device->ordinal == bound_ordinal,
               "a launch on another device than the thread's");
  own.follows_launch = true;
  if (own.is_second) ++All().second_lane_launches;
  HEDDLE_CHECK(shape.shared_bytes <= MaxSharedBytes(All().machine),
               "more shared memory than the device has");
  HEDDLE_CHECK(shape.grid_y <= kMostBlocks && shape.grid_z <= kMostBlocks,
               "more blocks along y or z than a grid has");
  const auto* bytes = static_cast<const std::byte*>(params);
  InTurn(*own.device, [device = own.device, kernel, call, shape,
                       copy = std::vector<std::byte>(bytes, bytes + params_bytes)] {
    StartKernel(*device, kernel, call, shape, copy);
  });
  return kSuccess;
}

// The emulated device gives every kernel all that it has.
Error PrepareKernel(const void*, const LaunchShape&, Stream) { return kSuccess; }

Error EncodeTensorMap(const TiledMatrix& matrix, TensorMap* map) {
  *map = {.data = static_cast<const uint8_t*>(matrix.data),
          .rows = matrix.rows,
          .cols = matrix.cols,
          .row_bytes = matrix.row_bytes(),
          .box_rows = matrix.box_rows,
          .box_cols = matrix.box_cols(),
          .element_bytes = matrix.element_bytes};
  return kSuccess;
}

// Launches happen at once, in the order in which they are made.
absl::Status Runtime::Signal(int lane) {
  if (queues_[lane].tape != nullptr) queues_[lane].tape->Signal(lane);
  return absl::OkStatus();
}

absl::Status Runtime::Wait(int lane, int on) {
  if (queues_[lane].tape != nullptr) {
    queues_[lane].tape->Wait(lane, on);
  } else {
    queues_[lane].joins = true;
    NoteOther(queues_[lane]);
  }
  return absl::OkStatus();
}

// Launches as early as the tape allows, those of one lane first, so that missing waits show.
absl::Status Runtime::LaunchAll(const Tape& tape) {
  const std::vector<Tape::Launch>& launches = tape.launches();
  std::vector<bool> done(launches.size(), false);
  const int first_lane = All().machine.first_lane;
  const auto is_done = [&](int i) { return i < 0 || done[static_cast<size_t>(i)]; };
  for (size_t count = 0; count < launches.size(); ++count) {
    size_t next = launches.size();
    for (size_t i = 0; i < launches.size(); ++i) {
      const Tape::Launch& launch = launches[i];
      if (done[i] || !is_done(launch.before) || !is_done(launch.after)) continue;
      const bool is_early = launch.lane == first_lane;
      if (next == launches.size() || (is_early && launches[next].lane != first_lane)) next = i;
    }
    HEDDLE_CHECK(next < launches.size(), "the lanes of a tape wait for each other");
    const Tape::Launch& launch = launches[next];
    HEDDLE_RETURN_IF_ERROR(
        ToStatus(LaunchKernel(launch.kernel, launch.call, launch.shape, queues_[launch.lane].stream,
                              tape.params(next), launch.params_bytes),
                 "launching a kernel"));
    done[next] = true;
  }
  return absl::OkStatus();
}

// A graph is a copy of its tape; ChangeGraph changes only what it is told to.
absl::StatusOr<Runtime::Graph> Runtime::MakeGraph(const Tape& tape) {
  if (All().machine.refuses_graphs) return absl::ResourceExhaustedError("emulated: no graphs");
  return new Tape(tape);
}

absl::Status Runtime::ChangeGraph(Graph graph, const Tape& tape, size_t i) {
  if (All().machine.refuses_changes) return absl::UnavailableError("emulated: no change of graphs");
  static_cast<Tape*>(graph)->Replace(i, tape);
  ++All().graph_changes;
  return absl::OkStatus();
}

absl::Status Runtime::LaunchGraph(Graph graph) {
  FollowOther();
  ++All().graph_launches;
  HEDDLE_RETURN_IF_ERROR(LaunchAll(*static_cast<Tape*>(graph)));
  NoteOther(queues_[0]);
  return absl::OkStatus();
}

void Runtime::FreeGraph(Graph graph) { delete static_cast<Tape*>(graph); }

absl::Status Runtime::ToStatus(Error error, const char* what) const {
  if (error == kSuccess) return absl::OkStatus();
  if (error == kIllegalAddress) {
    return absl::UnavailableError(absl::StrCat("cuda:", info_.ordinal, " (", info_.name,
                                               ") failed while ", what,
                                               ": an illegal memory access was encountered (700)"));
  }
  return absl::InternalError(
      absl::StrCat("emulated ", what, ":\n", absl::StrJoin(emulate::TakeFindings(), "\n")));
}

}  // namespace heddle::kernels::cuda
