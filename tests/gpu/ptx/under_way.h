// Operations that a block's threads have started and that have not happened yet. See machine.h on
// asynchrony.
// Thread-safety: none, as the machine.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "tests/gpu/ptx/machine.h"
#include "tests/gpu/ptx/tensor_map.h"

namespace heddle::ptx {

// cp.async of a warp. Each lane has groups of its own (ISA 9.7.9.25.3).
struct CopiesUnderWay {
  struct Copy {
    uint64_t from;   // global memory
    uint32_t to;     // in .shared
    uint32_t group;  // of its lane
    uint8_t lane;
    uint8_t bytes;   // that are written
    uint8_t copied;  // of them; the others become zero
  };
  std::vector<Copy> copies;  // in the order of issue
  // Number of the group that a lane's next copy belongs to: so many were committed.
  std::array<uint32_t, kWarpLanes> next_group = {};
};

// Addresses of .shared: [begin, end).
struct SharedRange {
  uint32_t begin = 0, end = 0;
  bool Overlaps(const SharedRange& other) const { return begin < other.end && other.begin < end; }
};

// wgmma.mma_async of a warp: its 16 rows of what the warpgroup multiplies (ISA 9.7.15).
struct ProductsUnderWay {
  struct Product {
    const Instruction* instruction;
    uint64_t a, b;  // descriptors; `a` is unused where the matrix is in registers
    bool accumulates;
    bool happened;  // at once, where the machine is not late
    int64_t group;
    SharedRange a_range, b_range;  // that it may read until it is waited for
  };
  std::deque<Product> products;  // in the order of issue
  int64_t next_group = 0;
  bool fenced = false;  // wgmma.fence since the last wait
  // The last issued products, at issued % size: all warps of a group must agree.
  struct Issued {
    const Instruction* instruction = nullptr;
    uint64_t a = 0, b = 0;
    bool operator==(const Issued&) const = default;
  };
  std::array<Issued, 64> history = {};
  int64_t issued = 0;
};

// An mbarrier object (ISA 9.7.13.15). The 64 bits in shared memory hold the same, packed, so that
// one that was overwritten is noticed.
struct Mbarrier {
  uint32_t phase = 0;  // number of phases that are over
  int32_t expected = 0;
  int32_t pending = 0;  // arrivals
  int32_t bytes = 0;    // tx-count
  // The warp whose initialisations no fence has ordered before the async proxy yet; -1: none.
  int32_t unfenced_warp = -1;
};

struct BulkCopies {
  struct Copy {
    Warp* warp;
    const Instruction* instruction;
    int lane;
    bool is_tensor;
    TensorMap map;
    std::array<int32_t, kMaxMapRank> coordinates;
    uint64_t from;  // and `bytes`: of a copy without a map
    uint32_t to;    // in .shared
    uint32_t barrier;
    int32_t bytes;  // that `barrier` is told of
    SharedRange Range() const { return {to, to + static_cast<uint32_t>(bytes)}; }
  };
  std::vector<Copy> copies;               // in the order of issue
  std::map<uint32_t, Mbarrier> barriers;  // by address in .shared
};

CopiesUnderWay& CopiesOf(Warp& warp);
ProductsUnderWay& ProductsOf(Warp& warp);
BulkCopies& BulkCopiesOf(Block& block);

// Whether [address, address + bytes) of .shared is the block's and no store of the generic proxy to
// it waits for a fence.proxy.async (ISA 9.7.9.25.2 and 9.7.15.4 "Async proxy"). False after Fail.
bool CheckAsyncProxy(Warp& warp, uint32_t address, int64_t bytes, int lane);

// Operations that a warp whose lanes have all exited, or a block whose warps have, leaves behind
// although the ISA requires a wait; empty: none.
std::string LeftBehind(const Warp& warp);
std::string LeftBehind(const Block& block);

}  // namespace heddle::ptx
