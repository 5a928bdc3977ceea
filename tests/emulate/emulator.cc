#include "tests/emulate/emulator.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "tests/emulate/async.h"
#include "tests/emulate/async_state.h"
#include "tests/emulate/fiber.h"
#include "tests/emulate/shadow.h"

namespace heddle::kernels::cuda::emulate {
namespace {

constexpr int32_t kMaxThreads = 1024;
constexpr int32_t kMaxShared = 227 << 10;  // limit per block on sm_90
constexpr int32_t kSlotBytes = 64;
constexpr size_t kMaxFindings = 20;
constexpr uintptr_t kSharedAlignment = 1024;  // as primitives_device.cuh requires

struct AsyncCopy {
  void* to;
  const void* from;
  int32_t bytes;
};

// A point where threads wait for each other: all `expected` arrive, then the generation advances.
struct Meeting {
  uint32_t generation = 0;
  int32_t arrived = 0;
};

struct Warp {
  Meeting meeting;
  uint32_t epoch = 1;
  const char* kind = nullptr;  // the collective at which lanes are arriving
  // Deposits of this and of the previous collective: a lane may be at most one ahead of another.
  alignas(16) std::array<std::array<char, kSlotBytes>, kWarpLanes> slots[2];
};

struct Thread {
  std::unique_ptr<Fiber> fiber;
  const Meeting* waits_for = nullptr;
  uint32_t generation = 0;                       // the meeting's, when the wait began
  const std::function<bool()>* ready = nullptr;  // for WaitUntil
  std::deque<std::vector<AsyncCopy>> groups;
  std::vector<AsyncCopy> open_group;
};

}  // namespace

// A running block, or one held where it waits for earlier launches.
struct Block {
  std::vector<Thread> threads{kMaxThreads};
  std::vector<Warp> warps{kMaxThreads / kWarpLanes};
  Meeting barrier;
  uint32_t block_epoch = 1;
  ThreadId current;
  std::vector<char> shared = std::vector<char>(kMaxShared + kSharedAlignment);
  char* const shared_base =
      reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(shared.data()) + kSharedAlignment - 1) /
                              kSharedAlignment * kSharedAlignment);
  int32_t shared_bytes = 0;
  Shadow shadow;
  AsyncState async;
  bool is_held = false;     // earlier launches have not ended
  bool has_waited = false;  // whether one of its threads has
};

namespace {

struct State {
  Order order = Order::kForward;
  std::mutex mutex;
  std::vector<std::unique_ptr<Block>> spare;  // GUARDED_BY(mutex)
  std::vector<std::string> findings;          // GUARDED_BY(mutex)
};

// Each host thread's own: the block whose threads run, and how many findings it has made.
thread_local Block* running = nullptr;
thread_local int64_t num_findings = 0;

void Enter(Block& block) {
  running = &block;
  detail::current = &block.current;
}

State& Get() {
  static auto* state = new State;  // never destroyed: fibers may outlive main's statics
  return *state;
}

Block& Running() { return *running; }

std::unique_ptr<Block> TakeBlock() {
  State& state = Get();
  const std::lock_guard lock(state.mutex);
  if (state.spare.empty()) return std::make_unique<Block>();
  std::unique_ptr<Block> block = std::move(state.spare.back());
  state.spare.pop_back();
  return block;
}

bool IsForward() { return Get().order == Order::kForward; }

bool Blocked(const Thread& thread) {
  if (thread.ready != nullptr) return !(*thread.ready)();
  return thread.waits_for != nullptr && thread.waits_for->generation == thread.generation;
}

// Leaves the running thread for the one that RunRound would resume next, or for RunRound.
void GiveWay(Block& block, Fiber& self) {
  const int32_t next = block.current.thread + (IsForward() ? 1 : -1);
  if (Fiber::kSwitches && next >= 0 && next < block.current.threads) {
    const Thread& other = block.threads[next];
    if (!other.fiber->done() && !Blocked(other)) {
      block.current.thread = next;
      return self.YieldTo(*other.fiber);
    }
  }
  self.Yield();
}

// Arrives at `meeting` and runs other threads until all `expected` have arrived.
void Meet(Meeting& meeting, int32_t expected) {
  if (++meeting.arrived == expected) {
    meeting.arrived = 0;
    ++meeting.generation;
    return;
  }
  Block& block = Running();
  const int32_t thread = block.current.thread;
  Thread& self = block.threads[thread];
  self.waits_for = &meeting;
  self.generation = meeting.generation;
  GiveWay(block, *self.fiber);
  self.waits_for = nullptr;
  block.current.thread = thread;
}

// Resumes every thread that can run. Returns false if none could.
bool RunRound(Block& block) {
  const int32_t threads = block.current.threads;
  const bool forward = IsForward();
  bool progress = false;
  for (int32_t i = 0; i < threads; ++i) {
    const int32_t index = forward ? i : threads - 1 - i;
    Thread& thread = block.threads[index];
    if (thread.fiber->done() || Blocked(thread)) continue;
    block.current.thread = index;
    thread.fiber->Resume();
    progress = true;
    // It may have given way to those behind it.
    i = forward ? block.current.thread : threads - 1 - block.current.thread;
  }
  return progress;
}

bool HasPendingCopies(const Thread& thread) {
  bool pending = !thread.open_group.empty();
  for (const auto& group : thread.groups) pending = pending || !group.empty();
  return pending;
}

void FinishThreads(Block& block) {
  const int32_t threads = block.current.threads;
  int32_t stuck = 0;
  for (int32_t i = 0; i < threads; ++i) {
    Thread& thread = block.threads[i];
    if (!thread.fiber->done()) {
      ++stuck;
      thread.fiber = std::make_unique<Fiber>();  // its stack is abandoned
    } else if (HasPendingCopies(thread)) {
      block.current.thread = i;
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

void StartBlock(Block& block, const ThreadId& first, int32_t shared_bytes,
                const std::function<void()>& body) {
  Enter(block);
  block.current = first;
  block.shared_bytes = shared_bytes;
  block.is_held = block.has_waited = false;
  block.shadow.Reset(shared_bytes, block.block_epoch);
  AsyncBegin(first.threads, shared_bytes);
  // NaN in every float type, so that uninitialised values are noticed.
  std::memset(SharedBase(), 0xFF, shared_bytes);
  block.barrier = Meeting();
  block.block_epoch = 1;
  for (int32_t w = 0; w < first.threads / kWarpLanes; ++w) {
    block.warps[w].meeting = Meeting();
    block.warps[w].epoch = 1;
  }
  for (int32_t i = 0; i < first.threads; ++i) {
    Thread& thread = block.threads[i];
    if (thread.fiber == nullptr) thread.fiber = std::make_unique<Fiber>();
    thread.fiber->Start(&body);
  }
}

// Runs the block as far as its threads get.
void RunBlock(Block& block) {
  Enter(block);
  while (RunRound(block)) {
  }
}

// Runs the block to its end; it is then available for reuse.
void EndBlock(std::unique_ptr<Block> block, bool must_wait) {
  block->is_held = false;
  RunBlock(*block);
  AsyncEnd();
  FinishThreads(*block);
  if (must_wait && !block->has_waited) {
    Report(absl::StrCat(Where(), " ended without waiting for the launches before"));
  }
  State& state = Get();
  const std::lock_guard lock(state.mutex);
  state.spare.push_back(std::move(block));
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
  const Block& block = Running();
  const Clocks& clocks = block.async.clocks;
  return {.thread = thread,
          .block_epoch = block.block_epoch,
          .warp_epoch = block.warps[thread / kWarpLanes].epoch,
          .clock = clocks.Own(thread),
          .clocks = clocks.started() ? &clocks : nullptr};
}

}  // namespace

namespace detail {
constinit thread_local ThreadId* current = nullptr;
}  // namespace detail

std::string Where() {
  const ThreadId& id = Current();
  return absl::StrCat("block (", id.block.x, ",", id.block.y, ",", id.block.z, ") thread ",
                      id.thread);
}

Launching::Launching(Dim grid, int32_t threads, int32_t shared_bytes, bool early,
                     std::function<void()> body)
    : grid_(grid),
      threads_(threads),
      shared_bytes_(shared_bytes),
      early_(early),
      body_(std::move(body)) {
  HEDDLE_CHECK(threads > 0 && threads <= kMaxThreads && threads % kWarpLanes == 0,
               "a block has 32 to 1024 threads in whole warps");
  HEDDLE_CHECK(shared_bytes >= 0 && shared_bytes <= kMaxShared, "too much shared memory");
  HEDDLE_CHECK(grid.x > 0 && grid.y > 0 && grid.z > 0, "a grid has no empty dimension");
  HEDDLE_CHECK(grid.y <= 65535 && grid.z <= 65535, "grid.y and grid.z are 16 bits wide");
}

Launching::~Launching() { HEDDLE_CHECK(held_.empty(), "an emulated launch was not finished"); }

std::unique_ptr<Block> Launching::Start(int64_t index) const {
  const int64_t row = index / grid_.x;
  const Dim at = {static_cast<int32_t>(index % grid_.x), static_cast<int32_t>(row % grid_.y),
                  static_cast<int32_t>(row / grid_.y)};
  std::unique_ptr<Block> block = TakeBlock();
  StartBlock(*block, {.thread = 0, .threads = threads_, .block = at, .grid = grid_}, shared_bytes_,
             body_);
  return block;
}

void Launching::Begin() {
  const int64_t before = num_findings;
  // Takes one of the blocks between the first and the last, which differs with the grid's size.
  const int64_t count = NumBlocks();
  for (const int64_t index : {int64_t{0}, count - 1, count * 7 / 11}) {
    if (held_.count(index) != 0) continue;
    std::unique_ptr<Block> block = Start(index);
    block->is_held = true;
    RunBlock(*block);
    held_[index] = std::move(block);
  }
  good_ = good_ && num_findings == before;
}

bool Launching::Finish() {
  const int64_t before = num_findings;
  for (int64_t i = 0; i < NumBlocks(); ++i) {
    const auto held = held_.find(i);
    std::unique_ptr<Block> block = held == held_.end() ? Start(i) : std::move(held->second);
    if (held != held_.end()) held_.erase(held);
    EndBlock(std::move(block), early_);
  }
  return good_ && num_findings == before;
}

bool Launch(Dim grid, int32_t threads, int32_t shared_bytes, const std::function<void()>& body) {
  return Launching(grid, threads, shared_bytes, /*early=*/false, body).Finish();
}

std::vector<std::string> TakeFindings() {
  State& state = Get();
  const std::lock_guard lock(state.mutex);
  return std::exchange(state.findings, {});
}

void SetOrder(Order order) { Get().order = order; }

AsyncState& Async() { return Running().async; }

void WaitForPrevious() {
  Block& block = Running();
  block.has_waited = true;
  WaitUntil([&block] { return !block.is_held; });
}

void SyncThreads() {
  Block& block = Running();
  const int32_t threads = block.current.threads;
  // The last to arrive opens the next epoch for all.
  if (block.barrier.arrived + 1 == threads) ++block.block_epoch;
  Meet(block.barrier, threads);
}

char* Exchange(const char* kind, const void* mine, int32_t bytes) {
  Block& block = Running();
  HEDDLE_CHECK(bytes <= kSlotBytes, "a lane's deposit is too large");
  const int32_t thread = block.current.thread;
  Warp& warp = block.warps[thread / kWarpLanes];
  if (warp.meeting.arrived == 0) warp.kind = kind;
  if (warp.kind != kind && std::strcmp(warp.kind, kind) != 0) {
    Report(absl::StrCat(Where(), ": lanes of one warp meet in ", warp.kind, " and ", kind));
  }
  auto& slots = warp.slots[warp.meeting.generation & 1];
  if (bytes > 0) std::memcpy(slots[thread % kWarpLanes].data(), mine, bytes);
  Meet(warp.meeting, kWarpLanes);
  return slots[0].data();
}

void SyncWarp() {
  const int32_t index = Current().thread / kWarpLanes;
  Warp& warp = Running().warps[index];
  if (warp.meeting.arrived + 1 == kWarpLanes) {
    ++warp.epoch;
    AsyncSyncWarp(index);
  }
  Exchange("SyncWarp", nullptr, 0);
}

char* SharedBase() { return Running().shared_base; }

int32_t SharedBytes() { return Running().shared_bytes; }

bool CheckShared(const void* address, int32_t bytes, Access access) {
  Block& block = Running();
  const int64_t offset = static_cast<const char*>(address) - block.shared_base;
  const char* verb = access == Access::kRead ? "reads" : "writes";
  if (offset < 0 || offset + bytes > block.shared_bytes) {
    Report(absl::StrCat(Where(), " ", verb, " ", bytes, " bytes at ", offset, " of ",
                        block.shared_bytes, " bytes of shared memory"));
    return false;
  }
  if (offset % std::min(bytes, 16) != 0) {
    Report(absl::StrCat(Where(), " ", verb, " ", bytes, " bytes at misaligned offset ", offset));
  }
  if (block.async.is_used) {
    AsyncOrdinary(static_cast<int32_t>(offset), bytes, access != Access::kRead);
  }
  switch (
      block.shadow.Record(static_cast<int32_t>(offset), bytes, access, Now(block.current.thread))) {
    case Conflict::kNone:
      break;
    case Conflict::kUninitialised:
      Report(absl::StrCat(Where(), " reads shared memory at ", offset, " that nothing wrote"));
      break;
    case Conflict::kRace:
      Report(absl::StrCat(Where(), " ", verb, " shared memory at ", offset,
                          " in a race with thread ", block.shadow.other_thread()));
      break;
  }
  return true;
}

void CopyAsync(void* to_shared, const void* from, int32_t bytes) {
  if (!CheckShared(to_shared, bytes, Access::kWrite)) return;
  Poison(to_shared, bytes);
  Block& block = Running();
  block.threads[block.current.thread].open_group.push_back({to_shared, from, bytes});
}

void CopyAsyncCommit() {
  Block& block = Running();
  Thread& self = block.threads[block.current.thread];
  self.groups.push_back(std::exchange(self.open_group, {}));
}

void CopyAsyncWait(int32_t groups_left) {
  Block& block = Running();
  Thread& self = block.threads[block.current.thread];
  while (static_cast<int32_t>(self.groups.size()) > groups_left) {
    Complete(self.groups.front());
    self.groups.pop_front();
  }
}

void WaitUntil(const std::function<bool()>& ready) {
  Block& block = Running();
  if (ready()) return;
  const int32_t thread = block.current.thread;
  Thread& self = block.threads[thread];
  self.ready = &ready;
  GiveWay(block, *self.fiber);
  self.ready = nullptr;
  block.current.thread = thread;
}

void RecordWrite(int32_t offset, int32_t bytes, int32_t thread, uint32_t clock) {
  Moment then = Now(thread);
  then.clock = clock;
  Running().shadow.Record(offset, bytes, Access::kWrite, then);
}

void Report(const std::string& finding) {
  State& state = Get();
  ++num_findings;
  const std::lock_guard lock(state.mutex);
  if (state.findings.size() < kMaxFindings) state.findings.push_back(finding);
}

}  // namespace heddle::kernels::cuda::emulate
