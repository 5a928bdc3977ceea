// The peak of int8 products without VNNI: each is widened by itself.
// REQUIRES: peak_kernels.h and int16_*.h included before.
#pragma once

#include <cstdint>

namespace heddle::kernels::cpu {
namespace {

inline float Int8Rounds(int64_t rounds) {
  IntSums sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = SetInts(i);
  ByteVec w = SetInts(0x03030303);
  const IntSums x = SetInts(0x05050505);
  const IntSums ones = SetInts(0x10001);
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) {
      w = InOrder(w);  // keeps the compiler from computing the product only once
      sums[i] = AddInts(sums[i], MultiplyPairs(MultiplyBytes(w, x), ones));
    }
  }
  for (int i = 1; i < kChains; ++i) sums[0] = AddInts(sums[0], sums[i]);
  return static_cast<float>(reinterpret_cast<IntVec>(sums[0])[0]);
}

constexpr int64_t kInt8Ops = int64_t{kChains} * kLanes * 4 * 2;

}  // namespace
}  // namespace heddle::kernels::cpu
