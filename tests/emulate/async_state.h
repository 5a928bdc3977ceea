// The running block's asynchronous state, shared by async.cc and product.cc.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "tests/emulate/async.h"
#include "tests/emulate/clocks.h"
#include "tests/emulate/lines.h"

namespace heddle::kernels::cuda::emulate {

struct TileCopy {
  int32_t to_offset = 0;
  TensorMap map;
  int32_t x = 0, y = 0;
  int32_t issuer = 0;
  Clock issued;  // the issuer's knowledge
  // [box_rows, 128] at the time of issue, before the swizzle. A copy may take place at once, or as
  // late as when a thread waits for it.
  std::vector<char> taken;
};

struct Barrier {
  int32_t count = 0;    // arrivals per phase
  int32_t missing = 0;  // in this phase
  int64_t bytes = 0;    // expected and not yet copied
  uint32_t phase = 0;
  Clock arriving, completed;
  std::vector<TileCopy> copies;  // in flight
};

struct NamedBarrierState {
  int32_t threads = 0;  // of this generation; 0: nobody has arrived
  int32_t arrived = 0;
  uint32_t generation = 0;
  Clock arriving, completed;
};

// A product in flight, for one thread.
struct PendingProduct {
  Product product;
  std::array<std::array<uint32_t, 4>, 4> a = {};  // registers of the four threads that share rows
  std::array<uint32_t, 4> own_a = {};
  bool is_first = false;  // first on these sums, which were saved
  std::vector<float> saved;
  uint64_t versions = 0;  // versions of the lines that it reads; kept by a warp's first thread
};

struct ProductThread {
  std::deque<std::vector<PendingProduct>> groups;
  std::vector<PendingProduct> open;
  bool is_fenced = false;
  size_t issued = 0;  // products
};

struct AsyncState {
  Clocks clocks;
  Lines lines{clocks};
  bool is_used = false;  // in this block
  int32_t threads = 0;
  int32_t shared_bytes = 0;
  std::map<int32_t, Barrier> barriers;
  std::array<NamedBarrierState, 16> named;
  std::vector<ProductThread> products;          // [threads]
  std::vector<std::vector<uint64_t>> matrices;  // [warpgroups] of B, in the order of issue
};

AsyncState& Async();  // in emulator.cc, which owns blocks
// Called before this code does anything in a block.
void UseAsync();

void EndProducts();

}  // namespace heddle::kernels::cuda::emulate
