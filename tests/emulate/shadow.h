// The emulator's record of each granule of a block's shared memory: who accessed it last, and how
// many barriers ago. It finds races and reads of memory that was never written.
// Thread-safety: none; owned by the emulator.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/emulate/clocks.h"
#include "tests/emulate/emulator.h"

namespace heddle::kernels::cuda::emulate {

// A point in a block's execution for the purpose of ordering.
struct Moment {
  int32_t thread = 0;
  uint32_t block_epoch = 0;        // barriers of the block passed
  uint32_t warp_epoch = 0;         // barriers of this thread's warp passed
  uint32_t clock = 1;              // the thread's own time
  const Clocks* clocks = nullptr;  // of the block's threads, if barriers order only some of them
  int32_t warp() const { return thread / kWarpLanes; }
};

enum class Conflict : uint8_t { kNone, kUninitialised, kRace };

class Shadow {
 public:
  // Smallest unit of access: all element types of kernels are at least this wide.
  static constexpr int32_t kGranule = 2;

  // For the next block, whose predecessor passed so many barriers. Cells are not cleared: what is
  // in them is from an earlier epoch than any of this block.
  void Reset(int32_t bytes, uint32_t epochs_before);
  // Records the access of [offset, offset + bytes) and returns the worst conflict that it found.
  Conflict Record(int32_t offset, int32_t bytes, Access access, const Moment& now);
  // A thread with which the last conflict was, or -1 if there are several.
  int32_t other_thread() const { return other_thread_; }

 private:
  static constexpr int32_t kSeveral = -1;
  struct Mark {                // the last access of a kind; kSeveral if threads differ
    uint32_t block_epoch = 0;  // of all blocks, one after the other; up to base_: not in this one
    uint32_t warp_epoch = 0;
    uint32_t clock = 0;
    int16_t thread = 0;
    int8_t warp = 0;
    bool atomic = false;
  };
  struct Cell {
    Mark write;
    Mark read;
  };

  // Threads and the times at which they read a cell, if there are several.
  using Readers = std::vector<std::pair<int32_t, uint32_t>>;

  bool Ordered(const Mark& mark, const Moment& now) const;
  bool ReadersOrdered(int32_t index, const Mark& mark, const Moment& now) const;
  void AddReader(int32_t index, const Mark& before, const Moment& now);
  Conflict RecordCell(int32_t index, Access access, const Moment& now);

  std::vector<Cell> cells_;
  uint32_t base_ = 0;                             // epochs of all blocks before this one
  std::unordered_map<int32_t, Readers> readers_;  // of cells read by several threads, with clocks
  int32_t other_thread_ = 0;
};

}  // namespace heddle::kernels::cuda::emulate
