// Neighbouring elements that a thread moves together, up to 16 bytes at a time.
#pragma once

#include <bit>

#include "kernels/cuda/primitives/primitives.cuh"
#include "kernels/tensor.h"

namespace heddle::kernels::cuda {

template <typename T, int kWidth>
struct alignas(kWidth * sizeof(T) < 16 ? kWidth * sizeof(T) : 16) Group {
  T item[kWidth];
};

template <int kWidth, typename T>
HEDDLE_DEVICE Group<T, kWidth> LoadGroup(const T* from) {
  return *reinterpret_cast<const Group<T, kWidth>*>(from);
}

// Loads from an address that need not have the group's alignment, but mostly has.
template <int kWidth>
HEDDLE_DEVICE Group<float, kWidth> LoadAnywhere(const float* from) {
  if (reinterpret_cast<uint64_t>(from) % alignof(Group<float, kWidth>) == 0) {
    return LoadGroup<kWidth>(from);
  }
  Group<float, kWidth> group;
  HEDDLE_UNROLL
  for (int i = 0; i < kWidth; ++i) group.item[i] = from[i];
  return group;
}

// Stores to global memory.
template <typename T, int kWidth>
HEDDLE_DEVICE void StoreGroup(T* to, const Group<T, kWidth>& group) {
  if constexpr (sizeof(group) == sizeof(Vec16)) {
    StoreGlobal16(to, std::bit_cast<Vec16>(group));
  } else if constexpr (sizeof(group) == sizeof(Vec8)) {
    *reinterpret_cast<Vec8*>(to) = std::bit_cast<Vec8>(group);
  } else {
    *reinterpret_cast<Group<T, kWidth>*>(to) = group;
  }
}

// Whether rows begin where groups of `width` elements do.
template <typename T>
bool IsAligned(const Tensor& tensor, int width) {
  return tensor.data == nullptr ||
         (reinterpret_cast<uintptr_t>(tensor.data) % (width * sizeof(T)) == 0 &&
          tensor.stride % width == 0 && tensor.cols % width == 0);
}

}  // namespace heddle::kernels::cuda
