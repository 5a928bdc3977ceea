// Neighbouring elements that a thread moves together, 16 bytes at a time where they are as many.
#pragma once

#include "kernels/cuda/primitives.cuh"

namespace heddle::kernels::cuda {

template <typename T, int kWidth>
struct alignas(kWidth * sizeof(T) < 16 ? kWidth * sizeof(T) : 16) Group {
  T item[kWidth];
};

template <int kWidth, typename T>
HEDDLE_DEVICE Group<T, kWidth> LoadGroup(const T* from) {
  return *reinterpret_cast<const Group<T, kWidth>*>(from);
}

template <typename T, int kWidth>
HEDDLE_DEVICE void StoreGroup(T* to, const Group<T, kWidth>& group) {
  *reinterpret_cast<Group<T, kWidth>*>(to) = group;
}

}  // namespace heddle::kernels::cuda
