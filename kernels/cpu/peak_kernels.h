// Loops that do nothing but read, or nothing but multiply and add, on Vec.
// REQUIRES: one of the vec_*.h headers and vec_math.h included before this one.
#pragma once

#include <cstdint>

#include "kernels/cpu/kernel_table.h"

namespace heddle::kernels::cpu {
namespace {

// Independent chains: latency of 4 to 5 cycles times two units, with some to spare.
constexpr int kChains = 12;

inline float ReadAll(const void* data, int64_t bytes) {
  const auto* p = static_cast<const float*>(data);
  const float* end = p + bytes / 4;
  Vec sums[8];
  for (Vec& sum : sums) sum = Zero();
  for (; p + 8 * kLanes <= end; p += 8 * kLanes) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) sums[i] = sums[i] + Load(p + i * kLanes);
  }
  for (int i = 1; i < 8; ++i) sums[0] = sums[0] + sums[i];
  return ReduceAdd(sums[0]);
}

inline float FmaRounds(int64_t rounds) {
  Vec sums[kChains];
  for (int i = 0; i < kChains; ++i) sums[i] = Set(static_cast<float>(i));
  const Vec factor = Set(0.999f);
  for (int64_t r = 0; r < rounds; ++r) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) sums[i] = Fma(sums[i], factor, factor);
  }
  for (int i = 1; i < kChains; ++i) sums[0] = sums[0] + sums[i];
  return ReduceAdd(sums[0]);
}

constexpr int64_t kFmaFlops = int64_t{kChains} * kLanes * 2;

}  // namespace
}  // namespace heddle::kernels::cpu
