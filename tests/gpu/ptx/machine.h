// The machine that runs PTX: blocks one after the other, their warps in turns. A warp's lanes are
// groups that stand at the same instruction; the group at the lowest place runs, so that branches
// come together again as early as the compiler's order of blocks allows.
//
// Addresses. Global memory is host memory, at its own addresses; every access is checked against
// what was allocated. The other state spaces are windows of generic addresses that no host pointer
// lies in (kSharedWindow, ...). Shared memory begins at kSharedBase of its window, not at 0, as on
// the hardware, where the first KiB is taken.
//
// Asynchrony. What the ISA lets happen later happens as late as possible, or at once: see
// MachineOptions::late. A kernel has to be right both ways.
//
// Whatever a device would fault on, and what the ISA calls undefined and can be seen here, ends the
// launch with a message that names kernel, block, thread, line and instruction.
// Thread-safety: none.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "tests/gpu/ptx/program.h"

namespace heddle::ptx {

inline constexpr uint64_t kSharedWindow = uint64_t{1} << 56;
inline constexpr uint64_t kLocalWindow = uint64_t{2} << 56;
inline constexpr uint64_t kParamWindow = uint64_t{3} << 56;
inline constexpr uint64_t kWindowMask = uint64_t{0xFF} << 56;
inline constexpr uint32_t kSharedBase = 1024;
inline constexpr uint64_t kRowAlignment = 64;          // of register rows, bytes
inline constexpr int32_t kMaxSharedBytes = 227 << 10;  // that a block may ask for, sm_90

struct Dim3 {
  uint32_t x = 1, y = 1, z = 1;
};

struct LaunchConfig {
  Dim3 grid, block;
  int32_t dynamic_shared_bytes = 0;
};

// Memory accesses of warps.
struct AccessCounts {
  int64_t global_requests = 0;  // loads and stores of a warp
  int64_t global_sectors = 0;   // of 32 bytes that they touch
  int64_t global_bytes = 0;     // that lanes asked for
  int64_t shared_requests = 0;
  int64_t shared_passes = 0;  // 128 bytes each; more than it takes are bank conflicts
  int64_t shared_least = 0;   // passes that as many bytes take without conflicts

  AccessCounts& operator+=(const AccessCounts& other);
};

// The counts of a launch, in warps' instructions unless said otherwise.
struct Counts : AccessCounts {
  int64_t instructions = 0;
  std::vector<AccessCounts> accesses;  // by instruction, for MachineOptions::by_instruction
  int64_t bulk_bytes = 0;              // by bulk copies
  int64_t async_bytes = 0;             // by cp.async
  int64_t matrix_multiplies = 0;       // multiply-adds of tensor cores
};

struct MachineOptions {
  // Copies and products happen as late as possible, when something waits for them; otherwise at
  // once.
  bool late = true;
  // Blocks from the last to the first.
  bool backward = false;
  // Counts accesses of each instruction, too.
  bool by_instruction = false;
  // Kernels may touch whatever memory the process has: for tests that hand out host memory.
  bool any_address = false;
};

class Block;

// A warp's pending operations: see async.cc and matrix.cc.
struct CopiesUnderWay;
struct ProductsUnderWay;
struct BulkCopies;

class Machine {
 public:
  explicit Machine(MachineOptions options = {});
  ~Machine();

  // Global memory, 512-byte aligned, zeroed or as the caller wishes. `pinned`: host memory, which
  // kernels may read as well.
  void* Allocate(int64_t bytes);
  bool Free(void* data);  // false: not an allocation
  // Host memory that kernels may touch, not owned (module variables, page-locked memory).
  void AddRange(const void* data, int64_t bytes);
  void RemoveRange(const void* data);
  // Whether [address, address + bytes) lies in one allocation.
  bool IsAllocated(uint64_t address, int64_t bytes) const;
  // The allocation that was found last, as [begin, end).
  const std::pair<uint64_t, uint64_t>& last_range() const { return last_range_; }

  // Runs the kernel to its end. `params`: kernel.param_bytes of them. Errors: INVALID_ARGUMENT for
  // a launch that a device would refuse, ABORTED for a fault.
  absl::Status Launch(const Kernel& kernel, const LaunchConfig& config, const void* params);

  const MachineOptions& options() const { return options_; }
  void set_options(const MachineOptions& options) { options_ = options; }
  std::map<std::string, Counts, std::less<>>& counts() { return counts_; }  // by kernel

 private:
  MachineOptions options_;
  std::map<uint64_t, int64_t> ranges_;  // begin to bytes
  std::map<uint64_t, std::unique_ptr<uint8_t[]>> owned_;
  mutable std::pair<uint64_t, uint64_t> last_range_ = {0, 0};
  std::map<std::string, Counts, std::less<>> counts_;
};

// Lanes of a warp at one place.
struct Group {
  int32_t place = 0;
  Lanes lanes = 0;
};

// A warp of a block. Register rows hold values of the register's width: Row<T> with a T of just
// that width.
class Warp {
 public:
  Warp(Block& block, int index, uint8_t* rows);
  ~Warp();

  template <typename T>
  T* Row(const Operand& operand) {
    return reinterpret_cast<T*>(rows_ + static_cast<size_t>(operand.row) * 32);
  }
  template <typename T>
  T* Row(int32_t row) {
    return reinterpret_cast<T*>(rows_ + static_cast<size_t>(row) * 32);
  }
  Lanes Predicate(const Operand& operand) const {
    const Lanes p = predicates_[static_cast<size_t>(operand.row)];
    return operand.negated ? ~p : p;
  }
  void SetPredicate(const Operand& operand, Lanes lanes, Lanes value) {
    Lanes& p = predicates_[static_cast<size_t>(operand.row)];
    p = (p & ~lanes) | (value & lanes);
  }
  // The address of an operand [base + offset] for a lane: as written in a state space's own
  // instruction, or generic. With a base of 32 bits sums wrap at 32 bits.
  uint64_t Address(const Operand& operand, int lane) {
    if (operand.row < 0) return operand.value;
    if (operand.bytes == 8) return Row<uint64_t>(operand)[lane] + operand.value;
    return Row<uint32_t>(operand)[lane] + static_cast<uint32_t>(operand.value);
  }

  // Memory of the block's threads behind an address of .shared (an offset, as 32-bit addresses
  // are), checked; nullptr after Fail.
  uint8_t* Shared(uint64_t offset, int bytes, int lane);
  // Behind a generic address of global memory, checked, aligned to `bytes` (16 at most).
  uint8_t* Global(uint64_t address, int bytes, int lane);
  // Whichever window or host memory a generic address lies in.
  uint8_t* Generic(uint64_t address, int bytes, int lane);
  uint8_t* Local(uint64_t offset, int bytes, int lane);
  const uint8_t* Param(uint64_t offset, int bytes, int lane);

  // The launch ends with this message; `lane` -1: no one lane's fault. Returns kAgain, so that
  // callers can `return warp.Fail(...)`.
  Outcome Fail(std::string_view message, int lane = -1);

  // Lanes that have not exited.
  Lanes alive() const { return alive_; }
  // For counts: a load or store of `bytes` at shared offsets or global addresses of `lanes`.
  void CountShared(const uint64_t* offsets, int bytes, Lanes lanes);
  void CountGlobal(const uint64_t* addresses, int bytes, Lanes lanes);
  int index() const { return index_; }
  Block& block() { return block_; }
  const Instruction* current() const { return current_; }
  Counts& counts();
  // Counts an access of the current instruction.
  void CountAccess(const AccessCounts& access);
  // Places of lanes.
  const std::vector<Group>& groups() const { return groups_; }
  void Exit(Lanes lanes);

  // cp.async of this warp's lanes, products of its warpgroup; made on first use.
  std::unique_ptr<CopiesUnderWay> copies;
  std::unique_ptr<ProductsUnderWay> products;
  // For bar.sync: number of the phase that each barrier was entered in, -1: not waiting.
  std::array<int64_t, 16> waits_for;

 private:
  friend class Block;
  // Runs the group at the lowest place that can go on, for a while; false: none could.
  bool RunSome();
  bool RunGroup(size_t which);
  // One branch of a group that stands at `place`; true: its lanes are all at `*place` now.
  bool Branch(const Instruction& branch, size_t which, Lanes taken, int32_t* place);
  void Merge();
  void Begin();

  Block& block_;
  int index_;
  Lanes alive_ = 0;
  std::vector<Group> groups_;
  uint8_t* rows_;
  std::vector<Lanes> predicates_;
  std::vector<uint8_t> local_;
  const Instruction* current_ = nullptr;
};

// Counters of bar.sync and bar.arrive.
struct NamedBarrier {
  int32_t arrived = 0;   // threads
  int32_t expected = 0;  // 0: none has arrived yet
  int64_t phase = 0;
};

class Block {
 public:
  Block(Machine& machine, const Kernel& kernel, const LaunchConfig& config, const void* params,
        Counts& counts);
  ~Block();
  absl::Status Execute(Dim3 index);

  Machine& machine() { return machine_; }
  const Kernel& kernel() const { return kernel_; }
  const LaunchConfig& config() const { return config_; }
  Dim3 index() const { return index_; }
  int32_t num_threads() const { return num_threads_; }
  std::vector<std::unique_ptr<Warp>>& warps() { return warps_; }
  std::array<NamedBarrier, 16>& barriers() { return barriers_; }
  // Bytes from kSharedBase on: static ones, then the dynamic ones.
  std::vector<uint8_t>& shared() { return shared_; }
  Counts& counts() { return counts_; }
  bool failed() const { return !failure_.empty(); }

  // Generic-proxy stores to shared memory that no fence.proxy.async has ordered before what bulk
  // copies and wgmma do: for each 16 bytes of shared(), 1 + the warp that stored last, 0: none.
  // Stores and fences keep it, the async proxy looks at it.
  std::vector<uint8_t> stored_by;

  // Bulk copies under way; made on first use (async.cc).
  std::unique_ptr<BulkCopies> bulk;

 private:
  friend class Warp;
  std::string Places() const;

  Machine& machine_;
  const Kernel& kernel_;
  const LaunchConfig& config_;
  const uint8_t* params_;
  Counts& counts_;
  Dim3 index_;
  int32_t num_threads_;
  std::vector<std::unique_ptr<Warp>> warps_;
  std::array<NamedBarrier, 16> barriers_;
  std::vector<uint8_t> shared_;
  std::vector<uint8_t> rows_;  // of all warps
  std::string failure_;
};

// What RunGroup sees to itself.
Outcome RunBranch(Warp& warp, const Instruction& branch, Lanes taken);

// Lets one pending operation that nothing has waited for happen; false if there is none. Called
// when no warp of the block can continue. async.cc.
bool AdvanceBulkCopies(Block& block);

}  // namespace heddle::ptx
