// Single elements of a packed weight: for embeddings, conversions and the plain matrix product.
#pragma once

#include "kernels/cuda/linear/weight_layout.h"
#include "kernels/cuda/primitives/primitives.cuh"

namespace heddle::kernels::cuda {

// v of the code at place e = 0..7 of lane t in block `block` of a row.
template <WeightLayout kLayout>
HEDDLE_DEVICE float CodeElement(const DeviceWeight& w, const uint8_t* row, int64_t block, int t,
                                int e) {
  constexpr LayoutTraits kTraits = TraitsOf(kLayout);
  constexpr int kBlocks = kTraits.blocks();
  const uint8_t* lane = row + block / kBlocks * 64 + t * 16 + block % kBlocks * (16 / kBlocks);
  if constexpr (IsF8(kLayout)) {
    return ToFloat(Float8{lane[e]});
  } else if constexpr (kTraits.code_bits == 8) {
    return static_cast<float>(static_cast<int8_t>(lane[e]));
  } else {
    const uint32_t word = *reinterpret_cast<const uint32_t*>(lane);
    if constexpr (HasTable(kLayout)) {
      const int code = static_cast<int>(word >> (4 * e)) & 15;
      const uint32_t low = (w.table_low[code / 4] >> (8 * (code % 4))) & 255;
      const uint32_t high = (w.table_high[code / 4] >> (8 * (code % 4))) & 255;
      return BitsToFloat(high << 24 | low << 16);
    } else {
      const int nibble = static_cast<int>(word >> (4 * (e / 2) + 16 * (e % 2))) & 15;
      return static_cast<float>(kTraits.has_offset ? nibble : nibble - 8);
    }
  }
}

// The value of column k of row r.
template <WeightLayout kLayout>
HEDDLE_DEVICE float WeightElement(const DeviceWeight& w, int64_t r, int64_t k) {
  constexpr LayoutTraits kTraits = TraitsOf(kLayout);
  const uint8_t* row = w.data + r * w.row_bytes;
  if constexpr (kLayout == WeightLayout::kF32) {
    return reinterpret_cast<const float*>(row)[k];
  } else if constexpr (kLayout == WeightLayout::kF16) {
    return ToFloat(reinterpret_cast<const Half*>(row)[k]);
  } else if constexpr (kLayout == WeightLayout::kBF16) {
    return ToFloat(reinterpret_cast<const BFloat16*>(row)[k]);
  } else {
    const int64_t block = k / 32;
    const int within = static_cast<int>(k % 32);
    const int t = kTraits.is_fine ? within % 16 / 4 : within / 8;
    const int e = kTraits.is_fine ? within / 16 * 4 + within % 4 : within % 8;
    [[maybe_unused]] const int sub = kTraits.is_fine ? within / 16 : 0;
    float value = CodeElement<kLayout>(w, row, block, t, e);
    if constexpr (kTraits.is_tiled) {
      value *= w.tiles_of(r)[k / kScaleTile];
    } else if constexpr (kTraits.is_scaled()) {
      const uint16_t* scales = w.scales + r * w.scales_stride + block * kTraits.entries() +
                               sub * (kTraits.has_offset ? 2 : 1);
      value *= ToFloat(Half{scales[0]});
      if constexpr (kTraits.has_offset) value += ToFloat(Half{scales[1]});
    }
    return w.row_factors != nullptr ? value * w.row_factors[r] : value;
  }
}

// The warp's product of a row of x and row r of the weight, the same in every lane.
template <typename T, WeightLayout kLayout>
HEDDLE_DEVICE float DotRow(const DeviceWeight& weight, const T* x, int64_t r) {
  float sum = 0;
  for (int64_t k = Lane(); k < weight.cols; k += 32) {
    sum += ToFloat(x[k]) * WeightElement<kLayout>(weight, r, k);
  }
  return WarpSum(sum);
}

// Calls fn.template operator()<layout>() for the weight's layout.
template <typename Fn>
auto ForLayout(WeightLayout layout, Fn fn) {
  switch (layout) {
    case WeightLayout::kF16:
      return fn.template operator()<WeightLayout::kF16>();
    case WeightLayout::kBF16:
      return fn.template operator()<WeightLayout::kBF16>();
    case WeightLayout::kInt8:
      return fn.template operator()<WeightLayout::kInt8>();
    case WeightLayout::kInt8Offset:
      return fn.template operator()<WeightLayout::kInt8Offset>();
    case WeightLayout::kInt8Fine:
      return fn.template operator()<WeightLayout::kInt8Fine>();
    case WeightLayout::kInt8FineOffset:
      return fn.template operator()<WeightLayout::kInt8FineOffset>();
    case WeightLayout::kInt8Row:
      return fn.template operator()<WeightLayout::kInt8Row>();
    case WeightLayout::kF8:
      return fn.template operator()<WeightLayout::kF8>();
    case WeightLayout::kF8Row:
      return fn.template operator()<WeightLayout::kF8Row>();
    case WeightLayout::kF8Block:
      return fn.template operator()<WeightLayout::kF8Block>();
    case WeightLayout::kInt4:
      return fn.template operator()<WeightLayout::kInt4>();
    case WeightLayout::kInt4Offset:
      return fn.template operator()<WeightLayout::kInt4Offset>();
    case WeightLayout::kTable4:
      return fn.template operator()<WeightLayout::kTable4>();
    case WeightLayout::kTable4Fine:
      return fn.template operator()<WeightLayout::kTable4Fine>();
    default:
      return fn.template operator()<WeightLayout::kF32>();
  }
}

}  // namespace heddle::kernels::cuda
