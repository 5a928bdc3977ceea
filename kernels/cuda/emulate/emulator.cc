#include "kernels/cuda/emulate/emulator.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "kernels/cuda/emulate/async.h"
#include "kernels/cuda/emulate/async_state.h"
#include "kernels/cuda/emulate/fiber.h"
#include "kernels/cuda/emulate/shadow.h"

namespace heddle::kernels::cuda::emulate {
namespace {

constexpr int32_t kMaxThreads = 1024;
constexpr int32_t kMaxShared = 227 << 10;  // what a block may have on sm_90
constexpr int32_t kSlotBytes = 64;
constexpr size_t kMaxFindings = 20;
constexpr uintptr_t kSharedAlignment = 1024;  // as primitives_device.cuh asks for

struct AsyncCopy {
  void* to;
  const void* from;
  int32_t bytes;
};

// A place where threads wait for each other: all `expected` arrive, then the generation advances.
struct Meeting {
  uint32_t generation = 0;
  int32_t arrived = 0;
};

struct Warp {
  Meeting meeting;
  uint32_t epoch = 1;
  const char* kind = nullptr;  // of the collective that lanes are arriving at
  // Deposits of this and of the last collective: a lane may be one ahead of another, never two.
  alignas(16) std::array<std::array<char, kSlotBytes>, kWarpLanes> slots[2];
};

struct Thread {
  std::unique_ptr<Fiber> fiber;
  const Meeting* waits_for = nullptr;
  uint32_t generation = 0;                       // of the meeting when the wait began
  const std::function<bool()>* ready = nullptr;  // of WaitUntil
  std::deque<std::vector<AsyncCopy>> groups;
  std::vector<AsyncCopy> open_group;
};

struct State {
  std::mutex launching;
  std::vector<Thread> threads{kMaxThreads};
  std::vector<Warp> warps{kMaxThreads / kWarpLanes};
  Meeting barrier;
  uint32_t block_epoch = 1;
  ThreadId current;
  std::vector<char> shared = std::vector<char>(kMaxShared + kSharedAlignment);
  int32_t shared_bytes = 0;
  Shadow shadow;
  Order order = Order::kForward;
  std::vector<std::string> findings;
  int64_t num_findings = 0;
};

State& Get() {
  static auto* state = new State;  // never destroyed: fibers may outlive main's statics
  return *state;
}

// Arrives at `meeting` and runs others until all `expected` have.
void Meet(Meeting& meeting, int32_t expected) {
  State& state = Get();
  if (++meeting.arrived == expected) {
    meeting.arrived = 0;
    ++meeting.generation;
    return;
  }
  const int32_t thread = state.current.thread;
  Thread& self = state.threads[thread];
  self.waits_for = &meeting;
  self.generation = meeting.generation;
  self.fiber->Yield();
  self.waits_for = nullptr;
  state.current.thread = thread;
}

bool Blocked(const Thread& thread) {
  if (thread.ready != nullptr) return !(*thread.ready)();
  return thread.waits_for != nullptr && thread.waits_for->generation == thread.generation;
}

// Resumes every thread that can run. False if none could.
bool RunRound(State& state, int32_t threads) {
  bool progress = false;
  for (int32_t i = 0; i < threads; ++i) {
    int32_t index = state.order == Order::kForward ? i : threads - 1 - i;
    Thread& thread = state.threads[index];
    if (thread.fiber->done() || Blocked(thread)) continue;
    state.current.thread = index;
    thread.fiber->Resume();
    progress = true;
  }
  return progress;
}

bool HasPendingCopies(const Thread& thread) {
  bool pending = !thread.open_group.empty();
  for (const auto& group : thread.groups) pending = pending || !group.empty();
  return pending;
}

void FinishThreads(State& state, int32_t threads) {
  int32_t stuck = 0;
  for (int32_t i = 0; i < threads; ++i) {
    Thread& thread = state.threads[i];
    if (!thread.fiber->done()) {
      ++stuck;
      thread.fiber = std::make_unique<Fiber>();  // its stack is abandoned
    } else if (HasPendingCopies(thread)) {
      state.current.thread = i;
      Report(absl::StrCat(Where(), " ended with asynchronous copies that it never waited for"));
    }
    thread.waits_for = nullptr;
    thread.ready = nullptr;
    thread.groups.clear();
    thread.open_group.clear();
  }
  if (stuck > 0) {
    Report(absl::StrCat(Where(), ": ", stuck, " of ", threads,
                        " threads wait for others that never arrive"));
  }
}

void RunBlock(State& state, int32_t threads, int32_t shared_bytes,
              const std::function<void()>& body) {
  state.shadow.Reset(shared_bytes);
  AsyncBegin(threads, shared_bytes);
  // Not a number in every float type: what leaks out of here does not go unnoticed.
  std::memset(SharedBase(), 0xFF, shared_bytes);
  state.barrier = Meeting();
  state.block_epoch = 1;
  for (int32_t w = 0; w < threads / kWarpLanes; ++w) {
    state.warps[w].meeting = Meeting();
    state.warps[w].epoch = 1;
  }
  for (int32_t i = 0; i < threads; ++i) {
    Thread& thread = state.threads[i];
    if (thread.fiber == nullptr) thread.fiber = std::make_unique<Fiber>();
    thread.fiber->Start(&body);
  }
  while (RunRound(state, threads)) {
  }
  AsyncEnd();
  FinishThreads(state, threads);
}

void Poison(void* to, int32_t bytes) { std::memset(to, 0xFF, bytes); }

void Complete(const std::vector<AsyncCopy>& group) {
  for (const AsyncCopy& copy : group) {
    CheckShared(copy.to, copy.bytes, Access::kWrite);
    if (copy.from == nullptr) {
      std::memset(copy.to, 0, copy.bytes);
    } else {
      std::memcpy(copy.to, copy.from, copy.bytes);
    }
  }
}

Moment Now(int32_t thread) {
  const State& state = Get();
  const Clocks& clocks = Async().clocks;
  return {.thread = thread,
          .block_epoch = state.block_epoch,
          .warp_epoch = state.warps[thread / kWarpLanes].epoch,
          .clock = clocks.Own(thread),
          .clocks = clocks.started() ? &clocks : nullptr};
}

}  // namespace

std::string Where() {
  const ThreadId& id = Get().current;
  return absl::StrCat("block (", id.block.x, ",", id.block.y, ",", id.block.z, ") thread ",
                      id.thread);
}

bool Launch(Dim grid, int32_t threads, int32_t shared_bytes, const std::function<void()>& body) {
  State& state = Get();
  std::lock_guard<std::mutex> lock(state.launching);
  HEDDLE_CHECK(threads > 0 && threads <= kMaxThreads && threads % kWarpLanes == 0,
               "a block has 32 to 1024 threads in whole warps");
  HEDDLE_CHECK(shared_bytes >= 0 && shared_bytes <= kMaxShared, "too much shared memory");
  HEDDLE_CHECK(grid.x > 0 && grid.y > 0 && grid.z > 0, "a grid has no empty dimension");
  HEDDLE_CHECK(grid.y <= 65535 && grid.z <= 65535, "grid.y and grid.z are 16 bits wide");
  state.shared_bytes = shared_bytes;
  const int64_t before = state.num_findings;
  for (int32_t z = 0; z < grid.z; ++z) {
    for (int32_t y = 0; y < grid.y; ++y) {
      for (int32_t x = 0; x < grid.x; ++x) {
        state.current = {.thread = 0, .threads = threads, .block = {x, y, z}, .grid = grid};
        RunBlock(state, threads, shared_bytes, body);
      }
    }
  }
  return state.num_findings == before;
}

std::vector<std::string> TakeFindings() { return std::exchange(Get().findings, {}); }

void SetOrder(Order order) { Get().order = order; }

const ThreadId& Current() { return Get().current; }

void SyncThreads() {
  State& state = Get();
  const int32_t threads = state.current.threads;
  // The last to arrive opens the next epoch for all.
  if (state.barrier.arrived + 1 == threads) ++state.block_epoch;
  Meet(state.barrier, threads);
}

const char* Exchange(const char* kind, const void* mine, int32_t bytes) {
  State& state = Get();
  HEDDLE_CHECK(bytes <= kSlotBytes, "a lane's deposit is too large");
  const int32_t thread = state.current.thread;
  Warp& warp = state.warps[thread / kWarpLanes];
  if (warp.meeting.arrived == 0) warp.kind = kind;
  if (std::strcmp(warp.kind, kind) != 0) {
    Report(absl::StrCat(Where(), ": lanes of one warp meet in ", warp.kind, " and ", kind));
  }
  auto& slots = warp.slots[warp.meeting.generation & 1];
  if (bytes > 0) std::memcpy(slots[thread % kWarpLanes].data(), mine, bytes);
  Meet(warp.meeting, kWarpLanes);
  return slots[0].data();
}

void SyncWarp() {
  Warp& warp = Get().warps[Get().current.thread / kWarpLanes];
  if (warp.meeting.arrived + 1 == kWarpLanes) {
    ++warp.epoch;
    AsyncSyncWarp(Get().current.thread / kWarpLanes);
  }
  Exchange("SyncWarp", nullptr, 0);
}

char* SharedBase() {
  auto address = reinterpret_cast<uintptr_t>(Get().shared.data());
  return reinterpret_cast<char*>((address + kSharedAlignment - 1) / kSharedAlignment *
                                 kSharedAlignment);
}

int32_t SharedBytes() { return Get().shared_bytes; }

bool CheckShared(const void* address, int32_t bytes, Access access) {
  State& state = Get();
  const int64_t offset = static_cast<const char*>(address) - SharedBase();
  const char* verb = access == Access::kRead ? "reads" : "writes";
  if (offset < 0 || offset + bytes > state.shared_bytes) {
    Report(absl::StrCat(Where(), " ", verb, " ", bytes, " bytes at ", offset, " of ",
                        state.shared_bytes, " bytes of shared memory"));
    return false;
  }
  if (offset % std::min(bytes, 16) != 0) {
    Report(absl::StrCat(Where(), " ", verb, " ", bytes, " bytes at misaligned offset ", offset));
  }
  AsyncOrdinary(static_cast<int32_t>(offset), bytes, access != Access::kRead);
  switch (
      state.shadow.Record(static_cast<int32_t>(offset), bytes, access, Now(state.current.thread))) {
    case Conflict::kNone:
      break;
    case Conflict::kUninitialised:
      Report(absl::StrCat(Where(), " reads shared memory at ", offset, " that nothing wrote"));
      break;
    case Conflict::kRace:
      Report(absl::StrCat(Where(), " ", verb, " shared memory at ", offset,
                          " in a race with thread ", state.shadow.other_thread()));
      break;
  }
  return true;
}

void CopyAsync(void* to_shared, const void* from, int32_t bytes) {
  if (!CheckShared(to_shared, bytes, Access::kWrite)) return;
  Poison(to_shared, bytes);
  State& state = Get();
  state.threads[state.current.thread].open_group.push_back({to_shared, from, bytes});
}

void CopyAsyncCommit() {
  State& state = Get();
  Thread& self = state.threads[state.current.thread];
  self.groups.push_back(std::exchange(self.open_group, {}));
}

void CopyAsyncWait(int32_t groups_left) {
  State& state = Get();
  Thread& self = state.threads[state.current.thread];
  while (static_cast<int32_t>(self.groups.size()) > groups_left) {
    Complete(self.groups.front());
    self.groups.pop_front();
  }
}

void WaitUntil(const std::function<bool()>& ready) {
  State& state = Get();
  if (ready()) return;
  const int32_t thread = state.current.thread;
  Thread& self = state.threads[thread];
  self.ready = &ready;
  self.fiber->Yield();
  self.ready = nullptr;
  state.current.thread = thread;
}

void RecordWrite(int32_t offset, int32_t bytes, int32_t thread, uint32_t clock) {
  Moment then = Now(thread);
  then.clock = clock;
  Get().shadow.Record(offset, bytes, Access::kWrite, then);
}

void Report(const std::string& finding) {
  State& state = Get();
  ++state.num_findings;
  if (state.findings.size() < kMaxFindings) state.findings.push_back(finding);
}

}  // namespace heddle::kernels::cuda::emulate
