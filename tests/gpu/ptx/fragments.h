// The elements of matrices that the registers of a warp hold, and sums of products of them: the
// common part of mma (ISA 9.7.14.5.8 "Matrix Fragments for mma.m16n8k16") and of a warp's 16 rows
// of wgmma (9.7.15.5.1.1 "Register Fragments").
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "tests/gpu/ptx/machine.h"
#include "tests/gpu/ptx/small_floats.h"

namespace heddle::ptx {

inline constexpr int kFragmentRows = 16;
inline constexpr int kFragmentDepth = 16;
inline constexpr int kMmaColumns = 8;
inline constexpr int kMaxColumns = 256;

// K outside: [k * 16 + row], [k * columns + column]; sums are [row * columns + column].
using FragmentA = std::array<float, kFragmentDepth * kFragmentRows>;
using FragmentB = std::array<float, kFragmentDepth * kMaxColumns>;
using Sums = std::array<float, kFragmentRows * kMaxColumns>;

// `registers`: four of 32 bits, each with two elements.
void LoadFragmentA(Warp& warp, const std::vector<Operand>& registers, SmallFloat type,
                   FragmentA* a);

// Two of 32 bits: K 0-7, then 8-15, of kMmaColumns columns.
void LoadFragmentB(Warp& warp, const std::vector<Operand>& registers, SmallFloat type,
                   FragmentB* b);

// `registers`: columns / 2 of F32.
void LoadSums(Warp& warp, const std::vector<Operand>& registers, int columns, Sums* sums);
void StoreSums(Warp& warp, const std::vector<Operand>& registers, int columns, const Sums& sums);

// *sums += a * b. `columns`: a multiple of 8.
void MultiplyAdd(const FragmentA& a, const FragmentB& b, int columns, Sums* sums);

}  // namespace heddle::ptx
