// One GPU as the host sees it: its properties, memory, stream and copies. Only this and the
// launchers call the CUDA runtime; runtime_emulated.cc does the same in the host's memory.
//
// Errors: the driver's errors become a Status that names what was tried and what to do. After a
// fault in a kernel the context is lost ("sticky"): every later call fails with UNAVAILABLE.
// Thread-safety: none; used by one thread at a time, which calls Bind first.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/runtime/stream.h"

namespace heddle::kernels::cuda {

struct DeviceInfo {
  std::string name;
  int32_t ordinal = 0;
  int32_t major = 0;  // compute capability
  int32_t minor = 0;
  int32_t num_multiprocessors = 0;
  int64_t total_bytes = 0;
  int32_t max_shared_bytes = 0;  // limit per block
  bool has_hopper_code = false;  // the build has kernels of sm_90a, and the device runs them
};

class Runtime {
 public:
  // The oldest architecture that the kernels' instructions (cp.async, BF16 mma) exist on.
  static constexpr int32_t kMinMajor = 8;

  // FAILED_PRECONDITION without a driver, or with one too old for this build; NOT_FOUND if there is
  // no such device (the message says how many there are); UNIMPLEMENTED for a device older than
  // compute capability 8.0, or one that this build has no code for; UNAVAILABLE for one that
  // another process has exclusively, or that is broken.
  static absl::StatusOr<std::unique_ptr<Runtime>> Open(int32_t ordinal);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  const DeviceInfo& info() const { return info_; }
  // Makes this device the calling thread's; CUDA keeps that per thread. Cheap if it already is.
  void Bind() const;
  // Copies and Synchronize wait for lane 0; lane 1 runs beside it between its own Wait on lane 0
  // and a Wait of lane 0 on it.
  static constexpr int kLanes = Tape::kLanes;
  Stream stream(int lane = 0) const { return &queues_[lane]; }
  // Records launches on `tape` from now on, or makes them directly again (nullptr).
  void set_tape(Tape* tape) {
    for (LaunchQueue& queue : queues_) queue.tape = tape;
  }
  // Lets all kernels ask for the same division of a multiprocessor's memory into L1 and shared from
  // now on. The division changes only while the multiprocessor is empty, so a kernel that asks for
  // more cannot begin early.
  void DivideMemoryOnce() {
    for (LaunchQueue& queue : queues_) queue.one_split = true;
  }
  // Makes launches begin when earlier ones have ended, even if the device could start them early.
  void LaunchInTurn() {
    for (LaunchQueue& queue : queues_) queue.early = false;
  }
  // Acts as if this build had no kernels of sm_90a.
  void LeaveOutHopperCode() { info_.has_hopper_code = false; }
  // Signal marks the present end of `lane` for Wait; after Wait, further work of `lane` comes after
  // the marked end of `on`. Both are recorded on the tape, if there is one.
  absl::Status Signal(int lane);
  absl::Status Wait(int lane, int on);
  int64_t FreeBytes() const;

  // Zero-filled. RESOURCE_EXHAUSTED says how much was requested, is free and is missing, and how
  // much of the device others hold.
  absl::StatusOr<void*> AllocateDevice(int64_t bytes);
  void FreeDevice(void* data, int64_t bytes);
  // Page-locked host memory, which copies can access asynchronously. RESOURCE_EXHAUSTED if the host
  // has no more of it.
  absl::StatusOr<void*> AllocatePinned(int64_t bytes);
  void FreePinned(void* data);

  // Copies in stream order; the caller keeps host memory until Synchronize. Host memory that is not
  // pinned is allowed and makes the call block.
  absl::Status CopyToDevice(void* to, const void* from, int64_t bytes);
  absl::Status CopyToHost(void* to, const void* from, int64_t bytes);
  absl::Status CopyOnDevice(void* to, const void* from, int64_t bytes);
  // Copies on a separate stream, independent of enqueued work; blocks until done.
  enum class Way : uint8_t { kToDevice, kToHost };
  absl::Status CopyBeside(Way way, void* to, const void* from, int64_t bytes);
  // Waits for all enqueued work, and reports its faults.
  absl::Status Synchronize();
  // A mark is behind all present work of lane 0, never on a tape, until it is set again.
  // WaitForMark synchronises up to there. NsBetween uses the device's clock; REQUIRES: both marks
  // were waited for. The first kStepMarks belong to steps, the others to trials (trial_timer.h).
  static constexpr int kStepMarks = 6;
  static constexpr int kMarks = kStepMarks + 2;
  absl::Status Mark(int mark);
  absl::Status WaitForMark(int mark);
  absl::StatusOr<int64_t> NsBetween(int from, int to) const;

  // Makes the launches of a tape one by one.
  absl::Status LaunchAll(const Tape& tape);
  // All launches of a tape as one object, in the order of their lanes. ChangeGraph gives launch i
  // the shape and parameters that it has on `tape`; the kernel must be the same. If it fails, the
  // graph can only be freed.
  using Graph = void*;
  absl::StatusOr<Graph> MakeGraph(const Tape& tape);
  absl::Status ChangeGraph(Graph graph, const Tape& tape, size_t i);
  absl::Status LaunchGraph(Graph graph);
  void FreeGraph(Graph graph);  // nullptr is allowed
  // Makes launches in future graphs wait for earlier ones to end.
  void MakeGraphsInTurn() { has_early_edges_ = false; }

  // OK for kSuccess; otherwise the error's meaning, prefixed with `what`: RESOURCE_EXHAUSTED for
  // want of device memory, UNAVAILABLE for all else.
  absl::Status ToStatus(Error error, const char* what) const;

 private:
  Runtime() {
    for (int lane = 0; lane < kLanes; ++lane) {
      queues_[lane].lane = lane;
      queues_[lane].prepared = &prepared_;
    }
  }

  // Notes that lane 0 was given something other than a launch. It is documented only for kernels
  // that a launch may begin before their end and how it waits for that, so the next launch begins
  // in its turn. Launches on a tape are made later.
  void FollowOther() {
    if (queues_[0].tape == nullptr) queues_[0].joins = true;
  }

  DeviceInfo info_;
  LaunchQueue queues_[kLanes];
  PreparedKernels prepared_;
  [[maybe_unused]] bool has_early_edges_ = true;   // for graphs; false once the driver refused them
  [[maybe_unused]] void* copies_ = nullptr;        // a stream
  [[maybe_unused]] void* signals_[kLanes] = {};    // events
  [[maybe_unused]] void* marks_[kMarks] = {};      // events
  [[maybe_unused]] int64_t mark_ns_[kMarks] = {};  // emulated: when they were passed
  [[maybe_unused]] int64_t marked_[kMarks] = {};   // emulated: how often they were set
  int64_t allocated_bytes_ = 0;
};

// The text of a RESOURCE_EXHAUSTED error; both implementations share it and all that follows.
absl::Status OutOfDeviceMemory(const DeviceInfo& info, int64_t wanted, int64_t free_bytes,
                               int64_t own_bytes);

// Versions are as the runtime gives them: 13000 is 13.0. `driver` 0: none was found.
absl::Status CheckDriverVersion(int32_t driver, int32_t built_with);
absl::Status CheckOrdinal(int32_t ordinal, int32_t count);
absl::Status CheckCapability(const DeviceInfo& info);
// The text of an UNIMPLEMENTED error. `built_for`: the architectures with machine code, "80, 90a".
absl::Status NoCodeFor(const DeviceInfo& info, std::string_view built_for);
absl::Status OutOfPinnedMemory(const DeviceInfo& info, int64_t wanted);

// Advice for an error of the runtime, to be appended to its text: "" or "; ...".
std::string AdviceFor(Error error);

}  // namespace heddle::kernels::cuda
