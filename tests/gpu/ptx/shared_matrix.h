// Matrices in shared memory as wgmma's 64-bit descriptors describe them: ISA 9.7.15.5.1.2 "Shared
// Memory Matrix Layout" and its sections on strides and on the matrix descriptor.
//
// The unit is a piece of 16 bytes: 8 elements side by side in the direction that is contiguous, K
// or M/N. As CuTe writes the canonical layouts, in pieces, with offsets in pieces, for a span of S:
//   K-major   none ((8, n), 2) : ((1, stride), leading)     else ((8, n), 2) : ((S, stride), 1)
//   MN-major  none ((1, n), (8, k)) : ((-, stride), (1, leading))
//             else ((S, n), (8, k)) : ((1, leading), (S, stride))
// and pieces change places within a span as tensor copies' do, by shared memory's address bits.
#pragma once

#include <cstdint>
#include <string>

#include "tests/gpu/ptx/machine.h"
#include "tests/gpu/ptx/small_floats.h"
#include "tests/gpu/ptx/tensor_map.h"
#include "tests/gpu/ptx/under_way.h"

namespace heddle::ptx {

struct SharedMatrix {
  uint32_t start;
  uint32_t leading;  // bytes
  uint32_t stride;   // bytes
  uint32_t base_offset;
  MapSwizzle swizzle;
  bool mn_major;

  // Address in .shared of the piece that holds element (mn, k): `mn` or `k`, the contiguous one,
  // is a multiple of 8.
  uint32_t Piece(int mn, int k) const;

  // From the first byte to the last of [mn_begin, mn_begin + mn_count) by 16, in whole rows of 128
  // bytes where pieces change places.
  SharedRange Range(int mn_begin, int mn_count) const;
};

// Empty, or what is wrong with the descriptor of a matrix of `mn_count` by 16.
std::string DecodeDescriptor(uint64_t descriptor, bool mn_major, int mn_count,
                             SharedMatrix* matrix);

// Rows [mn_begin, mn_begin + mn_count) of M or N by 16 of K as floats, K outside:
// to[k * mn_count + mn]. False after Fail, also where a store waits for its proxy fence.
bool LoadMatrix(Warp& warp, const SharedMatrix& matrix, SmallFloat type, int mn_begin, int mn_count,
                float* to);
// The same of E4M3 for half `half` of 32 of K, whose pieces have 16 elements. REQUIRES: K-major.
bool LoadMatrixE4M3(Warp& warp, const SharedMatrix& matrix, int half, int mn_begin, int mn_count,
                    float* to);

}  // namespace heddle::ptx
