// The asynchronous machinery of sm_90 on the host: barriers in shared memory, named barriers, bulk
// copies of tiles, and the matrix instructions of warpgroups. Part of the emulator; for the
// primitives.
//
// Everything is as late as the kernel allows: a copy arrives when a thread waits for its barrier,
// a product is computed when its warpgroup waits for it. Until then the destination holds poison,
// so that a wait that is missing shows in the numbers, too. Ordering is checked with vector clocks
// (clocks.h), tiles by lines (lines.h).
// Sources: PTX ISA, "mbarrier", "cp.async.bulk.tensor", "wgmma".
#pragma once

#include <cstdint>

#include "kernels/cuda/runtime/tensor_map.h"

namespace heddle::kernels::cuda::emulate {

// Barriers in shared memory; `offset` is the barrier's, in bytes from the block's first.
void BarrierInit(int32_t offset, int32_t count);
// Arrives, expecting `bytes` more of copies in this phase.
void BarrierArrive(int32_t offset, int64_t bytes);
// Waits until the phase of this parity is over. A new barrier is past the phase of parity 1.
void BarrierWait(int32_t offset, uint32_t parity);

// bar.sync and bar.arrive, `threads` in all.
void NamedBarrier(int32_t id, int32_t threads, bool waits);

// Starts to copy the box whose first element is column x, row y, swizzled by 128 bytes.
void CopyTile(int32_t to_offset, const TensorMap& map, int32_t x, int32_t y, int32_t barrier);
void FenceProxies();

// A matrix instruction of 64 rows, kN columns and a depth of 16, or of 32 in E4M3, by the threads
// of a warpgroup.
enum class ProductType : uint8_t { kBF16, kF16, kE4M3 };
struct Product {
  float* sums = nullptr;  // [columns / 8, 4] of this thread
  int32_t columns = 0;
  bool adds = false;             // to the sums; else they start at zero
  bool b_is_transposed = false;  // rows of B are contiguous along its columns
  ProductType type = ProductType::kBF16;
  const uint32_t* a = nullptr;  // [4] of this thread; nullptr: A is in shared memory
  uint64_t a_matrix = 0;        // descriptors
  uint64_t b_matrix = 0;
};
void ProductIssue(const Product& product);
void ProductFence();
void ProductCommit();
void ProductWait(int32_t groups_left);

// Sets the registers of each thread of the warpgroup. REQUIRES: as setmaxnreg.
void SetRegisters(int32_t count);

// For emulator.cc: called around a block, and within.
void AsyncBegin(int32_t threads, int32_t shared_bytes);
void AsyncEnd();
void AsyncSyncWarp(int32_t warp);
void AsyncOrdinary(int32_t offset, int32_t bytes, bool writes);

}  // namespace heddle::kernels::cuda::emulate
