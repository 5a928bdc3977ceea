// The additions of sm_90a to primitives.cuh: barriers in shared memory, bulk copies of tiles,
// matrix instructions of warpgroups, registers moved between warpgroups. A warpgroup is 4 warps,
// the first of which has an index divisible by 4.
//
// Tiles are in shared memory as rows of 128 bytes (64 elements), eight rows per pattern, which
// begins at a multiple of 1024 bytes. Within a pattern the 16-byte units of row r are permuted:
// unit u is at u ^ (r % 8) ("128-byte swizzle"), so that the eight rows of a column of units are in
// different banks. Bulk copies write tiles so; SwizzledUnit tells where ordinary stores must put
// them.
//
// WarpgroupMma is wgmma.m64nNk16, or k32 of Float8, with F32 sums. With w = warp of the group, g =
// lane / 4, t = lane % 4:
//   c[n][0,1] = C[16w + g][8n + 2t, +1]     c[n][2,3] = C[16w + g + 8][8n + 2t, +1]
//   a[0..3]   as of Mma16816, rows from 16w on
// A is in shared memory (as B contiguous along its depth) or in registers; B is contiguous along
// its depth, or along its columns for WarpgroupMmaTransposed. N is 64 or 128 with A in registers;
// 64, 96, 128, 160 or 208 without, of Half 128. Of Float8 both are in shared memory. It only starts
// the product: sums and a are not the thread's until WarpgroupWait. Before the first of a batch,
// WarpgroupFence; after the last, WarpgroupCommit. Sources: PTX ISA, "mbarrier",
// "cp.async.bulk.tensor", "wgmma", "setmaxnreg".
#pragma once

#include "kernels/cuda/primitives/primitives.cuh"
#include "kernels/cuda/runtime/tensor_map.h"

namespace heddle::kernels::cuda {

inline constexpr int kGroupThreads = 128;  // per warpgroup
inline constexpr int kLineElements = 64;   // 16-bit elements per row of a tile
inline constexpr int kPatternBytes = 1024;

// The place of unit `unit` (8 elements) of row `row`, in elements from the tile's first.
HEDDLE_HOST_DEVICE int SwizzledUnit(int row, int unit) {
  return row * kLineElements + (unit ^ (row & 7)) * 8;
}

// Describes a matrix in shared memory to WarpgroupMma: `address` in bytes; `leading`, bytes from 64
// columns to the next (for matrices that are not contiguous along their depth); `stride`, bytes
// from 8 rows to the next.
HEDDLE_HOST_DEVICE uint64_t MatrixDescriptor(uint32_t address, uint32_t leading, uint32_t stride) {
  return static_cast<uint64_t>((address & 0x3FFFFu) >> 4) |
         static_cast<uint64_t>(leading >> 4) << 16 | static_cast<uint64_t>(stride >> 4) << 32 |
         uint64_t{1} << 62;
}

}  // namespace heddle::kernels::cuda

#if defined(HEDDLE_CUDA_EMULATE)
#include "tests/emulate/primitives_hopper_host.cuh"
#else
#include "kernels/cuda/primitives/primitives_hopper_device.cuh"
#endif
