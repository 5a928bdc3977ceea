// Products with the factors of adapters, on Vec: rows of F32, F16 or BF16.
// REQUIRES: one of the vec_*.h headers and vec_math.h included before this one.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/kernel_table.h"

namespace heddle::kernels::cpu {
namespace {

// Loads the first `n` < kLanes elements, followed by zeros.
template <typename T>
inline void CopyTail(const T* from, int64_t n, T (&to)[kLanes]) {
  std::memset(to, 0, sizeof(to));
  std::memcpy(to, from, static_cast<size_t>(n) * sizeof(T));
}

// Four independent sums hide Fma's latency.
template <typename T, typename LoadVec>
inline float DotOf(const T* w, const float* x, int64_t n, const LoadVec& load) {
  Vec sums[4] = {Zero(), Zero(), Zero(), Zero()};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      sums[j] = Fma(load(w + i + j * kLanes), Load(x + i + j * kLanes), sums[j]);
    }
  }
  for (; i + kLanes <= n; i += kLanes) sums[0] = Fma(load(w + i), Load(x + i), sums[0]);
  if (i < n) {
    T last[kLanes];
    float last_x[kLanes];
    CopyTail(w + i, n - i, last);
    CopyTail(x + i, n - i, last_x);
    sums[0] = Fma(load(last), Load(last_x), sums[0]);
  }
  return ReduceAdd((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

inline float Dot(KvType type, const void* w, const float* x, int64_t n) {
  if (type == KvType::kF32) return DotOf(static_cast<const float*>(w), x, n, Load);
  const auto* halves = static_cast<const uint16_t*>(w);
  return type == KvType::kF16 ? DotOf(halves, x, n, FromF16) : DotOf(halves, x, n, FromBF16);
}

// Even and odd rows are summed separately, for two vectors of columns: four independent sums. A
// panel of columns touches one cache line of every row, which are more streams than processors
// track, so the same columns of the panel after next are prefetched.
template <typename T, typename LoadVec>
inline void AddRowsToPair(const void* const* rows, int64_t column, const float* s, int32_t count,
                          float* out, const LoadVec& load) {
  Vec sums[2][2] = {{Load(out), Load(out + kLanes)}, {Zero(), Zero()}};
  int32_t j = 0;
  for (; j + 2 <= count; j += 2) {
#pragma GCC unroll 2
    for (int odd = 0; odd < 2; ++odd) {
      const T* row = static_cast<const T*>(rows[j + odd]) + column;
      const Vec factor = Set(s[j + odd]);
      __builtin_prefetch(row + 4 * kLanes);
      sums[odd][0] = Fma(factor, load(row), sums[odd][0]);
      sums[odd][1] = Fma(factor, load(row + kLanes), sums[odd][1]);
    }
  }
  if (j < count) {
    const T* row = static_cast<const T*>(rows[j]) + column;
    sums[0][0] = Fma(Set(s[j]), load(row), sums[0][0]);
    sums[0][1] = Fma(Set(s[j]), load(row + kLanes), sums[0][1]);
  }
  Store(out, sums[0][0] + sums[1][0]);
  Store(out + kLanes, sums[0][1] + sums[1][1]);
}

template <typename T, typename LoadVec>
inline void AddRowsOf(const void* const* rows, int64_t column, const float* s, int32_t count,
                      int32_t n, float* out, const LoadVec& load) {
  int32_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    AddRowsToPair<T>(rows, column + i, s, count, out + i, load);
  }
  for (; i + kLanes <= n; i += kLanes) {
    Vec sum = Load(out + i);
    for (int32_t j = 0; j < count; ++j) {
      sum = Fma(Set(s[j]), load(static_cast<const T*>(rows[j]) + column + i), sum);
    }
    Store(out + i, sum);
  }
  if (i == n) return;
  float values[kLanes];
  CopyTail(out + i, n - i, values);
  Vec sum = Load(values);
  for (int32_t j = 0; j < count; ++j) {
    T last[kLanes];
    CopyTail(static_cast<const T*>(rows[j]) + column + i, n - i, last);
    sum = Fma(Set(s[j]), load(last), sum);
  }
  Store(values, sum);
  std::memcpy(out + i, values, static_cast<size_t>(n - i) * sizeof(float));
}

inline void AddRows(KvType type, const void* const* rows, int64_t column, const float* s,
                    int32_t count, int32_t n, float* out) {
  if (type == KvType::kF32) {
    AddRowsOf<float>(rows, column, s, count, n, out, Load);
  } else if (type == KvType::kF16) {
    AddRowsOf<uint16_t>(rows, column, s, count, n, out, FromF16);
  } else {
    AddRowsOf<uint16_t>(rows, column, s, count, n, out, FromBF16);
  }
}

}  // namespace
}  // namespace heddle::kernels::cpu
