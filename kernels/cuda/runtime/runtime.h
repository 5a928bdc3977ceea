// One GPU as the host sees it: its properties, memory, stream and copies. The only place, with the
// launchers, that calls the CUDA runtime; runtime_emulated.cc is the same on the host's memory.
//
// Errors: what the driver reports becomes a Status that names what was tried and what to do. After
// a fault in a kernel the context is lost ("sticky"): every later call fails with UNAVAILABLE.
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
  int32_t max_shared_bytes = 0;  // that a block may have
  bool has_hopper_code = false;  // this build holds kernels of sm_90a, and the device runs them
};

class Runtime {
 public:
  // The oldest architecture that the kernels' instructions (cp.async, BF16 mma) exist on.
  static constexpr int32_t kMinMajor = 8;

  // FAILED_PRECONDITION without a driver, or with one too old for this build; NOT_FOUND if there
  // is no such device (the message says how many there are); UNIMPLEMENTED for a device older than
  // compute capability 8.0, or one that this build holds no code for; UNAVAILABLE for one that
  // somebody else has to himself, or that is broken.
  static absl::StatusOr<std::unique_ptr<Runtime>> Open(int32_t ordinal);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  const DeviceInfo& info() const { return info_; }
  // Makes this device the calling thread's; CUDA keeps that per thread. Cheap when it is already.
  void Bind() const;
  // Lane 0 is what copies and Synchronize wait for; lane 1 runs beside it between a Wait of its on
  // lane 0 and one of lane 0 on it.
  static constexpr int kLanes = Tape::kLanes;
  Stream stream(int lane = 0) const { return &queues_[lane]; }
  // Keeps launches on `tape` from now on, or makes them again (nullptr).
  void set_tape(Tape* tape) {
    for (LaunchQueue& queue : queues_) queue.tape = tape;
  }
  // A multiprocessor divides its memory into L1 and shared as a kernel asks, and anew only when it
  // is empty, so that a kernel that asks for more cannot begin early. From now on all ask alike.
  void DivideMemoryOnce() {
    for (LaunchQueue& queue : queues_) queue.one_split = true;
  }
  // Launches begin when those before them have ended, also where the device could start them early.
  void LaunchInTurn() {
    for (LaunchQueue& queue : queues_) queue.early = false;
  }
  // As if this build held no kernels of sm_90a.
  void LeaveOutHopperCode() { info_.has_hopper_code = false; }
  // What `lane` was given so far is what Wait means; what `lane` is given from now on comes after
  // what `on` had then. Both on the tape, if there is one.
  absl::Status Signal(int lane);
  absl::Status Wait(int lane, int on);
  int64_t FreeBytes() const;

  // Zero-filled. RESOURCE_EXHAUSTED says how much was asked for, is free and is missing, and how
  // much of the device others hold.
  absl::StatusOr<void*> AllocateDevice(int64_t bytes);
  void FreeDevice(void* data, int64_t bytes);
  // Page-locked host memory, which copies can read and write on their own. RESOURCE_EXHAUSTED if
  // the host has no more of it.
  absl::StatusOr<void*> AllocatePinned(int64_t bytes);
  void FreePinned(void* data);

  // In stream order; the caller keeps host memory until Synchronize. Host memory that is not
  // pinned is allowed and makes the call block.
  absl::Status CopyToDevice(void* to, const void* from, int64_t bytes);
  absl::Status CopyToHost(void* to, const void* from, int64_t bytes);
  absl::Status CopyOnDevice(void* to, const void* from, int64_t bytes);
  // On a stream of its own, whatever is enqueued; blocks until done.
  enum class Way : uint8_t { kToDevice, kToHost };
  absl::Status CopyBeside(Way way, void* to, const void* from, int64_t bytes);
  // Waits for all that was enqueued, and reports its faults.
  absl::Status Synchronize();
  // A mark stands behind all that lane 0 was given so far, never on a tape, until it is set anew.
  // WaitForMark is Synchronize up to there. NsBetween is by the device's clock; REQUIRES: both were
  // waited for. The first kStepMarks are of steps, the others of trials (trial_timer.h).
  static constexpr int kStepMarks = 6;
  static constexpr int kMarks = kStepMarks + 2;
  absl::Status Mark(int mark);
  absl::Status WaitForMark(int mark);
  absl::StatusOr<int64_t> NsBetween(int from, int to) const;

  // The launches of a tape, one by one.
  absl::Status LaunchAll(const Tape& tape);
  // All launches of a tape as one object, in the order of their lanes. ChangeGraph gives launch i
  // the shape and parameters that it has on `tape`; the kernel must be the same. If it fails the
  // graph is good for nothing but FreeGraph.
  using Graph = void*;
  absl::StatusOr<Graph> MakeGraph(const Tape& tape);
  absl::Status ChangeGraph(Graph graph, const Tape& tape, size_t i);
  absl::Status LaunchGraph(Graph graph);
  void FreeGraph(Graph graph);  // nullptr is allowed
  // In graphs made from now on launches wait for those before them to have ended.
  void MakeGraphsInTurn() { has_early_edges_ = false; }

  // OK for kSuccess, else what the number means, prefixed with `what`: RESOURCE_EXHAUSTED for want
  // of device memory, UNAVAILABLE for all else.
  absl::Status ToStatus(Error error, const char* what) const;

 private:
  Runtime() {
    for (int lane = 0; lane < kLanes; ++lane) queues_[lane].lane = lane;
  }

  // Lane 0 was given something that is no launch. That a launch may begin before its end, and how
  // it would wait for that, is documented of kernels alone: the next one begins in its turn. Those
  // on a tape come later.
  void FollowOther() {
    if (queues_[0].tape == nullptr) queues_[0].joins = true;
  }

  DeviceInfo info_;
  LaunchQueue queues_[kLanes];
  [[maybe_unused]] bool has_early_edges_ = true;   // in graphs; false once the driver refused them
  [[maybe_unused]] void* copies_ = nullptr;        // a stream
  [[maybe_unused]] void* signals_[kLanes] = {};    // events
  [[maybe_unused]] void* marks_[kMarks] = {};      // events
  [[maybe_unused]] int64_t mark_ns_[kMarks] = {};  // emulated: when they were passed
  [[maybe_unused]] int64_t marked_[kMarks] = {};   // emulated: how often they were set
  int64_t allocated_bytes_ = 0;
};

// RESOURCE_EXHAUSTED in words; shared by both implementations, as all that follows.
absl::Status OutOfDeviceMemory(const DeviceInfo& info, int64_t wanted, int64_t free_bytes,
                               int64_t own_bytes);

// Versions as the runtime gives them: 13000 is 13.0. `driver` 0: none was found.
absl::Status CheckDriverVersion(int32_t driver, int32_t built_with);
absl::Status CheckOrdinal(int32_t ordinal, int32_t count);
absl::Status CheckCapability(const DeviceInfo& info);
// UNIMPLEMENTED in words. `built_for`: the architectures that there is machine code for, "80, 90a".
absl::Status NoCodeFor(const DeviceInfo& info, std::string_view built_for);
absl::Status OutOfPinnedMemory(const DeviceInfo& info, int64_t wanted);

// What to do about an error of the runtime: "" or "; ...", to stand behind its text.
std::string AdviceFor(Error error);

}  // namespace heddle::kernels::cuda
