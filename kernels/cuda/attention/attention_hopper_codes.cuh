// Queries of 8 bits for attention_hopper.cuh over caches of F8.
#pragma once

#include "kernels/cuda/attention/attention_hopper_stages.cuh"

namespace heddle::kernels::cuda {
namespace hopper {

// 16 columns of a row of queries.
struct QueryUnit {
  Vec16 half[2];
  HEDDLE_DEVICE float Get(int i) const {
    const uint32_t pair = half[i / 8].word[i % 8 / 2];
    return i % 2 == 0 ? LowFloat(pair, BFloat16()) : HighFloat(pair, BFloat16());
  }
};

// Makes the consumer's 64 rows of queries into codes with a scale for each row: its largest
// magnitude becomes 448, or infinity if it has one or a NaN. Lanes of the same row are adjacent.
template <int kDim>
HEDDLE_DEVICE void LoadCodes(const AttentionParams& p, const Walk& walk,
                             const Memory<Float8, kDim>& memory) {
  constexpr int kUnits = kDim / 16;
  constexpr float kLeast = 1e-20f;  // its inverse is finite
  constexpr float kEnd = 448.0f;
  NamedBarrierSync(kRowsThere + Consumer(), kGroupThreads);  // the last tile's queries are free now
  HEDDLE_UNROLL_BY(2)
  for (int i = ThreadX() % kGroupThreads; i < kGroupRows * kUnits; i += kGroupThreads) {
    const int row = Consumer() * kGroupRows + i / kUnits;
    const int unit = i % kUnits;
    const int packed = walk.tile.first + row;
    QueryUnit values = {};
    if (walk.s.Has(packed)) {
      const BFloat16* q = p.args.q.row<BFloat16>(QueryRow(p, walk.tile, walk.s, packed)) +
                          static_cast<int64_t>(walk.s.Head(packed)) * kDim + 16 * unit;
      values.half[0] = LoadFresh16(q);
      values.half[1] = LoadFresh16(q + 8);
    }
    float largest = kLeast;
    HEDDLE_UNROLL
    for (int e = 0; e < 16; ++e) {
      largest = Max(largest, IsNan(values.Get(e)) ? Infinity() : Abs(values.Get(e)));
    }
    HEDDLE_UNROLL
    for (int mask = kUnits / 2; mask > 0; mask /= 2) {
      largest = Max(largest, ShuffleXor(largest, mask));
    }
    const float inverse = kEnd / largest;
    Vec16 codes = {};
    HEDDLE_UNROLL
    for (int e = 0; e < 16; ++e) {
      const uint32_t code = RoundTo(values.Get(e) * inverse, Float8()).bits;
      codes.word[e / 4] |= code << (8 * (e % 4));
    }
    // SwizzledUnit counts in elements of 16 bits.
    memory.q.SetAs(2 * SwizzledUnit(row, unit), codes);
    if (unit == 0) memory.scales.Set(row, largest / kEnd);
  }
  FenceProxies();
  NamedBarrierSync(kRowsThere + Consumer(), kGroupThreads);
}

}  // namespace hopper
}  // namespace heddle::kernels::cuda
