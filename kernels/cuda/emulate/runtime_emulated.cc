// The runtime of the emulated device: everything is host memory and happens at once.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status.h"
#include "kernels/cuda/emulate/emulator.h"
#include "kernels/cuda/emulate/machine.h"
#include "kernels/cuda/runtime.h"

namespace heddle::kernels::cuda {
namespace {

// Few multiprocessors, so that plans made for them split small work in interesting ways.
constexpr int32_t kMultiprocessors = 6;
constexpr std::align_val_t kAlignment{256};  // as cudaMalloc aligns
constexpr int32_t kBuiltWith = 13000;
constexpr Error kIllegalAddress = 700;  // cudaErrorIllegalAddress

struct State {
  emulate::Machine machine;
  int64_t launches = 0;
  bool is_faulty = false;
};

State& Get() {
  static State state;
  return state;
}

// What a call returns: nothing works after a fault.
absl::Status Working(const Runtime& runtime, const char* what) {
  return runtime.ToStatus(Get().is_faulty ? kIllegalAddress : kSuccess, what);
}

}  // namespace

namespace emulate {

void SetMachine(const Machine& machine) { Get() = {.machine = machine}; }

bool HasLibrary() { return Get().machine.has_library; }

bool LibraryScalesRows() { return Get().machine.scales_rows; }

}  // namespace emulate

absl::StatusOr<std::unique_ptr<Runtime>> Runtime::Open(int32_t ordinal) {
  const emulate::Machine& machine = Get().machine;
  HEDDLE_RETURN_IF_ERROR(CheckDriverVersion(machine.driver, kBuiltWith));
  HEDDLE_RETURN_IF_ERROR(CheckOrdinal(ordinal, machine.device_count));
  std::unique_ptr<Runtime> runtime(new Runtime);
  runtime->info_ = {.name = "emulated",
                    .ordinal = ordinal,
                    .major = machine.compute_major,
                    .minor = machine.compute_minor,
                    .num_multiprocessors = kMultiprocessors,
                    .total_bytes = machine.total_bytes,
                    .has_hopper_code = machine.compute_major == 9};
  HEDDLE_RETURN_IF_ERROR(CheckCapability(runtime->info_));
  return runtime;
}

Runtime::~Runtime() = default;

void Runtime::Bind() const {}

int64_t Runtime::FreeBytes() const {
  return info_.total_bytes - Get().machine.taken_bytes - allocated_bytes_;
}

absl::StatusOr<void*> Runtime::AllocateDevice(int64_t bytes) {
  HEDDLE_RETURN_IF_ERROR(Working(*this, "allocating device memory"));
  if (bytes > FreeBytes()) {
    return OutOfDeviceMemory(info_, bytes, FreeBytes(), allocated_bytes_);
  }
  void* data = ::operator new(static_cast<size_t>(bytes), kAlignment);
  std::memset(data, 0, static_cast<size_t>(bytes));
  allocated_bytes_ += bytes;
  return data;
}

void Runtime::FreeDevice(void* data, int64_t bytes) {
  if (data == nullptr) return;
  ::operator delete(data, kAlignment);
  allocated_bytes_ -= bytes;
}

absl::StatusOr<void*> Runtime::AllocatePinned(int64_t bytes) {
  return ::operator new(static_cast<size_t>(bytes), kAlignment);
}

void Runtime::FreePinned(void* data) { ::operator delete(data, kAlignment); }

absl::Status Runtime::CopyToDevice(void* to, const void* from, int64_t bytes) {
  HEDDLE_RETURN_IF_ERROR(Working(*this, "copying to the device"));
  std::memcpy(to, from, static_cast<size_t>(bytes));
  return absl::OkStatus();
}

absl::Status Runtime::CopyToHost(void* to, const void* from, int64_t bytes) {
  HEDDLE_RETURN_IF_ERROR(Working(*this, "copying from the device"));
  std::memcpy(to, from, static_cast<size_t>(bytes));
  return absl::OkStatus();
}

absl::Status Runtime::CopyOnDevice(void* to, const void* from, int64_t bytes) {
  return CopyToDevice(to, from, bytes);
}

absl::Status Runtime::Synchronize() { return Working(*this, "running a step"); }

// A fault shows when the stream is waited for, not here.
Error LaunchKernel(const void* kernel, Tape::Caller call, const LaunchShape& shape, void*,
                   const void* params) {
  State& state = Get();
  const int64_t limit = state.machine.launches_before_fault;
  state.is_faulty = state.is_faulty || (limit >= 0 && state.launches >= limit);
  ++state.launches;
  if (state.is_faulty) return kSuccess;
  const bool good = emulate::Launch({shape.grid_x, shape.grid_y, shape.grid_z}, shape.threads,
                                    shape.shared_bytes, [&] { call(kernel, params); });
  return good ? kSuccess : kEmulatedFault;
}

Error EncodeTensorMap(const TiledMatrix& matrix, TensorMap* map) {
  *map = {.data = static_cast<const uint8_t*>(matrix.data),
          .rows = matrix.rows,
          .cols = matrix.cols,
          .row_bytes = 2 * matrix.cols,
          .box_rows = matrix.box_rows,
          .box_cols = TiledMatrix::kBoxCols,
          .element_bytes = 2};
  return kSuccess;
}

// Launches happen at once, in the order in which they are made.
absl::Status Runtime::Signal(int lane) {
  if (queues_[lane].tape != nullptr) queues_[lane].tape->Signal(lane);
  return absl::OkStatus();
}

absl::Status Runtime::Wait(int lane, int on) {
  if (queues_[lane].tape != nullptr) queues_[lane].tape->Wait(lane, on);
  return absl::OkStatus();
}

// As early as the tape allows, those of lane 1 first: what is missing of its waits shows.
absl::Status Runtime::LaunchAll(const Tape& tape) {
  const std::vector<Tape::Launch>& launches = tape.launches();
  std::vector<bool> done(launches.size(), false);
  const auto is_done = [&](int i) { return i < 0 || done[static_cast<size_t>(i)]; };
  for (size_t count = 0; count < launches.size(); ++count) {
    size_t next = launches.size();
    for (size_t i = 0; i < launches.size(); ++i) {
      const Tape::Launch& launch = launches[i];
      if (done[i] || !is_done(launch.before) || !is_done(launch.after)) continue;
      if (next == launches.size() || launch.lane > launches[next].lane) next = i;
    }
    HEDDLE_CHECK(next < launches.size(), "the lanes of a tape wait for each other");
    const Tape::Launch& launch = launches[next];
    HEDDLE_RETURN_IF_ERROR(
        ToStatus(LaunchKernel(launch.kernel, launch.call, launch.shape, nullptr, tape.params(next)),
                 "launching a kernel"));
    done[next] = true;
  }
  return absl::OkStatus();
}

// A graph is a copy of its tape; ChangeGraph takes over only what it is told to.
absl::StatusOr<Runtime::Graph> Runtime::MakeGraph(const Tape& tape) { return new Tape(tape); }

absl::Status Runtime::ChangeGraph(Graph graph, const Tape& tape, size_t i) {
  static_cast<Tape*>(graph)->Replace(i, tape);
  return absl::OkStatus();
}

absl::Status Runtime::LaunchGraph(Graph graph) { return LaunchAll(*static_cast<Tape*>(graph)); }

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
