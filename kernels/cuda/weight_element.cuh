// Single elements of a packed weight: for embeddings, conversions and the plain matrix product.
#pragma once

#include "kernels/cuda/params.h"
#include "kernels/cuda/primitives.cuh"

namespace heddle::kernels::cuda {

// Column k of a row, by format. `row` points at the row, `scales` at its scales.
template <DType kFormat>
HEDDLE_DEVICE float WeightElement(const uint8_t* row, const uint16_t* scales, int64_t k) {
  if constexpr (kFormat == DType::kF32) {
    return reinterpret_cast<const float*>(row)[k];
  } else if constexpr (kFormat == DType::kF16) {
    return ToFloat(reinterpret_cast<const Half*>(row)[k]);
  } else if constexpr (kFormat == DType::kBF16) {
    return ToFloat(reinterpret_cast<const BFloat16*>(row)[k]);
  } else {
    // See DeviceWeight: (group, lane t, block of the group, element of 8).
    constexpr int kBlocks = kFormat == DType::kQ8_0 ? 2 : 4;
    int64_t block = k / 32;
    int t = static_cast<int>(k % 32) / 8;
    int e = static_cast<int>(k % 8);
    const uint8_t* lane = row + block / kBlocks * 64 + t * 16 + block % kBlocks * (16 / kBlocks);
    float scale = ToFloat(Half{scales[block]});
    if constexpr (kFormat == DType::kQ8_0) {
      return scale * static_cast<float>(static_cast<int8_t>(lane[e]));
    } else {
      uint32_t word = *reinterpret_cast<const uint32_t*>(lane);
      int nibble = static_cast<int>(word >> (4 * (e / 2) + 16 * (e % 2))) & 15;
      return scale * static_cast<float>(nibble - 8);
    }
  }
}

template <DType kFormat>
HEDDLE_DEVICE float WeightElement(const DeviceWeight& w, int64_t r, int64_t k) {
  return WeightElement<kFormat>(w.data + r * w.row_bytes, w.scales + r * w.scales_stride, k);
}

// The warp's product of a row of x and row r of the weight, the same in every lane.
template <typename T, DType kFormat>
HEDDLE_DEVICE float DotRow(const DeviceWeight& weight, const T* x, int64_t r) {
  float sum = 0;
  for (int64_t k = Lane(); k < weight.cols; k += 32) {
    sum += ToFloat(x[k]) * WeightElement<kFormat>(weight, r, k);
  }
  return WarpSum(sum);
}

// Calls fn.template operator()<format>() for the weight's format.
template <typename Fn>
auto ForFormat(DType format, Fn fn) {
  switch (format) {
    case DType::kF16:
      return fn.template operator()<DType::kF16>();
    case DType::kBF16:
      return fn.template operator()<DType::kBF16>();
    case DType::kQ8_0:
      return fn.template operator()<DType::kQ8_0>();
    case DType::kQ4_0:
      return fn.template operator()<DType::kQ4_0>();
    default:
      return fn.template operator()<DType::kF32>();
  }
}

// Calls fn with a value of the storage type.
template <typename Fn>
auto ForActivation(DType act, Fn fn) {
  return act == DType::kF32 ? fn(float()) : fn(BFloat16());
}

}  // namespace heddle::kernels::cuda
