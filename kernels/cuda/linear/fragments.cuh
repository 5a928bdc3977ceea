// Converts packed weights in registers to matrix fragments.
//
// A lane (g = lane / 4, t = lane % 4) reads 16 bytes of rows g and g + 8 at a time: its share of a
// group of 32 (16-bit types), 64 (8-bit codes) or 128 (4-bit codes) columns. Since a sum may be in
// any order, the columns of a block of 32 are assigned to the fragment so that the lane's 8
// elements serve two matrix instructions: elements 4j .. 4j + 3 take the places of columns 2t,
// 2t+1, 2t+8, 2t+9 of instruction j. Activations are assigned the same way. Weights so go from
// memory to the tensor cores without passing through shared memory. In layouts with scales per 16
// columns, each sub-block belongs to one instruction. Source of the idea: Frantar et al., "MARLIN",
// 2024 (fragments dequantised in registers).
#pragma once

#include "kernels/cuda/linear/weight_layout.h"
#include "kernels/cuda/primitives/primitives.cuh"

namespace heddle::kernels::cuda {

// The 8 elements of a row that one lane holds of a block of 32 columns, as four pairs.
struct Pairs {
  uint32_t pair[4];
};

// Converts four signed bytes to BF16: 0x4300 is 128, whose last mantissa bits count in ones, so
// 0x4300
// (b & 127) = 128 + (b & 127), and 0x4300
// (b & 128) = 128, or 256 for negative b.
HEDDLE_DEVICE void PairsOfInt8(uint32_t word, uint32_t& first, uint32_t& second) {
  const uint32_t spread[2] = {BytePermute(word, 0, 0x4140), BytePermute(word, 0, 0x4342)};
  first = SubtractPairs(MaskOr(spread[0], 0x007F007F, 0x43004300),
                        MaskOr(spread[0], 0x00800080, 0x43004300), BFloat16());
  second = SubtractPairs(MaskOr(spread[1], 0x007F007F, 0x43004300),
                         MaskOr(spread[1], 0x00800080, 0x43004300), BFloat16());
}

// Converts four E4M3 to BF16: exponent and mantissa are moved to BF16's places, then multiplied by
// 2^120 for the difference of the exponents' biases; exact, also for subnormals. NaN, which no
// checkpoint holds, becomes 480.
HEDDLE_DEVICE void PairsOfF8(uint32_t word, uint32_t& first, uint32_t& second) {
  const uint32_t spread[2] = {BytePermute(word, 0, 0x1404), BytePermute(word, 0, 0x3424)};
  first = MultiplyPairs(MaskOr(spread[0], 0x80008000, (spread[0] & 0x7F007F00u) >> 4), 0x7B807B80u,
                        BFloat16());
  second = MultiplyPairs(MaskOr(spread[1], 0x80008000, (spread[1] & 0x7F007F00u) >> 4), 0x7B807B80u,
                         BFloat16());
}

// Bytes table[n] for the four nibbles n in the low half of `nibbles`.
HEDDLE_DEVICE uint32_t LookUp4(const uint32_t (&table)[4], uint32_t nibbles) {
  const uint32_t low = BytePermute(table[0], table[1], nibbles & 0x7777u);
  const uint32_t high = BytePermute(table[2], table[3], nibbles & 0x7777u);
  return BytePermute(low, high, ((nibbles >> 1) & 0x4444u) | 0x3210u);
}

// Converts eight codes by a table of BF16 numbers.
HEDDLE_DEVICE Pairs PairsOfTable(const DeviceWeight& w, uint32_t word) {
  Pairs out;
  HEDDLE_UNROLL
  for (int half = 0; half < 2; ++half) {
    const uint32_t low = LookUp4(w.table_low, word >> (16 * half));
    const uint32_t high = LookUp4(w.table_high, word >> (16 * half));
    out.pair[2 * half] = BytePermute(low, high, 0x5140);
    out.pair[2 * half + 1] = BytePermute(low, high, 0x7362);
  }
  return out;
}

// The lane's share of block `block` of the group in `raw`.
template <WeightLayout kLayout>
HEDDLE_DEVICE Pairs Fragment([[maybe_unused]] const DeviceWeight& w, const Vec16& raw, int block) {
  constexpr LayoutTraits kTraits = TraitsOf(kLayout);
  Pairs out;
  if constexpr (kLayout == WeightLayout::kBF16) {
    out = {{raw.word[0], raw.word[1], raw.word[2], raw.word[3]}};
  } else if constexpr (HasTable(kLayout)) {
    out = PairsOfTable(w, raw.word[block]);
  } else if constexpr (IsF8(kLayout)) {
    PairsOfF8(raw.word[2 * block], out.pair[0], out.pair[1]);
    PairsOfF8(raw.word[2 * block + 1], out.pair[2], out.pair[3]);
  } else if constexpr (kTraits.code_bits == 8) {
    PairsOfInt8(raw.word[2 * block], out.pair[0], out.pair[1]);
    PairsOfInt8(raw.word[2 * block + 1], out.pair[2], out.pair[3]);
  } else {
    constexpr uint32_t kZero = kTraits.has_offset ? 0x43004300u : 0x43084308u;  // 128, 136
    HEDDLE_UNROLL
    for (int i = 0; i < 4; ++i) {
      const uint32_t biased = MaskOr(raw.word[block] >> (4 * i), 0x000F000F, 0x43004300);
      out.pair[i] = SubtractPairs(biased, kZero, BFloat16());
    }
  }
  return out;
}

}  // namespace heddle::kernels::cuda
