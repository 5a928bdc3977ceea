// From packed weights in registers to matrix fragments.
//
// A lane (g = lane / 4, t = lane % 4) reads 16 bytes of rows g and g + 8 at a time: its share of a
// group of 32 (16-bit types), 64 (Q8_0) or 128 (Q4_0) columns. Since a sum does not care for the
// order of its terms, the columns of a block of 32 are dealt to the fragment so that the lane's 8
// neighbouring elements, 8t .. 8t + 7, serve two matrix instructions: elements 4j .. 4j + 3 stand
// where instruction j wants columns 2t, 2t+1, 2t+8, 2t+9. Activations are dealt the same way. So
// weights go from memory to the tensor cores without passing through shared memory.
#pragma once

#include "kernels/cuda/params.h"
#include "kernels/cuda/primitives.cuh"

namespace heddle::kernels::cuda {

// The 8 elements of a row that one lane holds of a block of 32 columns, as four pairs.
struct Pairs {
  uint32_t pair[4];
};

template <DType kFormat>
struct Fragments;

template <>
struct Fragments<DType::kBF16> {
  static constexpr int kBlocks = 1;  // of 32 columns in a group
  static constexpr bool kScaled = false;
  HEDDLE_DEVICE static Pairs Block(const Vec16& raw, int) {
    return {{raw.word[0], raw.word[1], raw.word[2], raw.word[3]}};
  }
};

// F16 weights are rounded to BF16, the type of the activations that they meet.
template <>
struct Fragments<DType::kF16> {
  static constexpr int kBlocks = 1;
  static constexpr bool kScaled = false;
  HEDDLE_DEVICE static Pairs Block(const Vec16& raw, int) {
    Pairs out;
    HEDDLE_UNROLL
    for (int i = 0; i < 4; ++i) {
      out.pair[i] =
          Pack2(LowFloat(raw.word[i], Half()), HighFloat(raw.word[i], Half()), BFloat16());
    }
    return out;
  }
};

// Quants are small integers, exact in BF16; the block's scale multiplies the F32 sum.
template <>
struct Fragments<DType::kQ8_0> {
  static constexpr int kBlocks = 2;
  static constexpr bool kScaled = true;
  HEDDLE_DEVICE static float Element(uint32_t word, int byte) {
    return static_cast<float>(static_cast<int8_t>(word >> (8 * byte)));
  }
  HEDDLE_DEVICE static Pairs Block(const Vec16& raw, int block) {
    Pairs out;
    HEDDLE_UNROLL
    for (int i = 0; i < 4; ++i) {
      uint32_t word = raw.word[2 * block + i / 2];
      out.pair[i] = Pack2(Element(word, 2 * (i % 2)), Element(word, 2 * (i % 2) + 1), BFloat16());
    }
    return out;
  }
};

// 0x4300 is 128 in BF16, whose last mantissa bits then count in ones: 0x4300 | n = 128 + n.
template <>
struct Fragments<DType::kQ4_0> {
  static constexpr int kBlocks = 4;
  static constexpr bool kScaled = true;
  HEDDLE_DEVICE static Pairs Block(const Vec16& raw, int block) {
    Pairs out;
    HEDDLE_UNROLL
    for (int i = 0; i < 4; ++i) {
      uint32_t biased = ((raw.word[block] >> (4 * i)) & 0x000F000Fu) | 0x43004300u;
      out.pair[i] = SubtractPairs(biased, 0x43084308u, BFloat16());  // 136
    }
    return out;
  }
};

}  // namespace heddle::kernels::cuda
