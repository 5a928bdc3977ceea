// Products with the factors of adapters, on Vec: rank rows of F32, F16 or BF16. Blocks of rank rows
// and rows of activations are computed together, each element in one sum of its own, so that no
// result depends on the blocks.
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

// Calls fn with a pointer type's value and the function that loads a Vec from it.
template <typename Fn>
inline void ForFactorType(KvType type, const Fn& fn) {
  const auto f32 = [](const float* p) { return Load(p); };
  const auto f16 = [](const uint16_t* p) { return FromF16(p); };
  const auto bf16 = [](const uint16_t* p) { return FromBF16(p); };
  if (type == KvType::kF32) return fn(float(), f32);
  if (type == KvType::kF16) return fn(uint16_t(), f16);
  fn(uint16_t(), bf16);
}

// AVX-512's. Blocks of 16 sums then need fewer conversions of factors for each Fma.
constexpr bool kHas32Registers = kLanes == 16;

// Rank rows [rank, rank + kRanks) times rows [row, row + kRows): eight sums hide Fma's latency.
template <int kRanks, int kRows, typename T, typename LoadVec>
inline void ShrinkBlock(const AdapterShrinkArgs& args, int32_t rank, int32_t row,
                        const LoadVec& load) {
  Vec sums[kRanks][kRows];
  for (auto& of_rank : sums) {
    for (Vec& sum : of_rank) sum = Zero();
  }
  const auto add = [&](const T* const* w, const float* const* x, int64_t at) {
    Vec rows[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) rows[r] = Load(x[r] + at);
#pragma GCC unroll 8
    for (int j = 0; j < kRanks; ++j) {
      const Vec factor = load(w[j] + at);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) sums[j][r] = Fma(factor, rows[r], sums[j][r]);
    }
  };
  const T* w[kRanks];
  const float* x[kRows];
  for (int j = 0; j < kRanks; ++j) w[j] = static_cast<const T*>(args.w[rank + j]);
  for (int r = 0; r < kRows; ++r) x[r] = args.x[row + r];
  int64_t at = 0;
  for (; at + kLanes <= args.n; at += kLanes) add(w, x, at);
  if (at < args.n) {
    T last_w[kRanks][kLanes];
    float last_x[kRows][kLanes];
    for (int j = 0; j < kRanks; ++j) {
      CopyTail(w[j] + at, args.n - at, last_w[j]);
      w[j] = last_w[j];
    }
    for (int r = 0; r < kRows; ++r) {
      CopyTail(x[r] + at, args.n - at, last_x[r]);
      x[r] = last_x[r];
    }
    add(w, x, 0);
  }
  for (int j = 0; j < kRanks; ++j) {
    for (int r = 0; r < kRows; ++r) {
      args.out[(row + r) * args.out_stride + rank + j] = args.scale * ReduceAdd(sums[j][r]);
    }
  }
}

// All ranks times rows [row, row + kRows).
template <int kRows, typename T, typename LoadVec>
inline void ShrinkRows(const AdapterShrinkArgs& args, int32_t row, const LoadVec& load) {
  int32_t rank = 0;
  for (; rank + 4 <= args.num_ranks; rank += 4) ShrinkBlock<4, kRows, T>(args, rank, row, load);
  for (; rank < args.num_ranks; ++rank) ShrinkBlock<1, kRows, T>(args, rank, row, load);
}

inline void AdapterShrink(const AdapterShrinkArgs& args) {
  ForFactorType(args.type, [&]<typename T>(T, const auto& load) {
    int32_t row = 0;
    if constexpr (kHas32Registers) {
      for (; row + 4 <= args.num_rows; row += 4) ShrinkRows<4, T>(args, row, load);
    }
    for (; row + 2 <= args.num_rows; row += 2) ShrinkRows<2, T>(args, row, load);
    if (row == args.num_rows) return;
    int32_t rank = 0;
    for (; rank + 8 <= args.num_ranks; rank += 8) ShrinkBlock<8, 1, T>(args, rank, row, load);
    for (; rank + 4 <= args.num_ranks; rank += 4) ShrinkBlock<4, 1, T>(args, rank, row, load);
    for (; rank < args.num_ranks; ++rank) ShrinkBlock<1, 1, T>(args, rank, row, load);
  });
}

// Columns [at, at + kVecs * kLanes) of rows [row, row + kRows).
template <int kRows, int kVecs, typename T, typename LoadVec>
inline void ExpandBlock(const AdapterExpandArgs& args, int32_t row, int64_t at,
                        const LoadVec& load) {
  Vec sums[kRows][kVecs];
  for (auto& of_row : sums) {
    for (Vec& sum : of_row) sum = Zero();
  }
  for (int32_t j = 0; j < args.num_ranks; ++j) {
    const T* w = static_cast<const T*>(args.w[j]) + args.column + at;
    Vec factors[kRows];
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) factors[r] = Set(args.s[(row + r) * args.s_stride + j]);
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) {
      const Vec value = load(w + v * kLanes);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) sums[r][v] = Fma(factors[r], value, sums[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    float* out = args.out + (row + r) * args.out_stride + at;
    for (int v = 0; v < kVecs; ++v) Store(out + v * kLanes, sums[r][v]);
  }
}

// The last n < kLanes columns of a row.
template <typename T, typename LoadVec>
inline void ExpandTail(const AdapterExpandArgs& args, int32_t row, int64_t at,
                       const LoadVec& load) {
  Vec sum = Zero();
  for (int32_t j = 0; j < args.num_ranks; ++j) {
    T last[kLanes];
    CopyTail(static_cast<const T*>(args.w[j]) + args.column + at, args.n - at, last);
    sum = Fma(Set(args.s[row * args.s_stride + j]), load(last), sum);
  }
  float values[kLanes];
  Store(values, sum);
  std::memcpy(args.out + row * args.out_stride + at, values,
              static_cast<size_t>(args.n - at) * sizeof(float));
}

template <int kRows, int kVecs, typename T, typename LoadVec>
inline void ExpandRows(const AdapterExpandArgs& args, int32_t row, const LoadVec& load) {
  int64_t at = 0;
  for (; at + kVecs * kLanes <= args.n; at += kVecs * kLanes) {
    ExpandBlock<kRows, kVecs, T>(args, row, at, load);
  }
  for (; at + kLanes <= args.n; at += kLanes) ExpandBlock<kRows, 1, T>(args, row, at, load);
  for (int r = 0; r < kRows && at < args.n; ++r) ExpandTail<T>(args, row + r, at, load);
}

// Adds rank rows [rank, rank + kRanks) to one row, whose sums stay in `out`. Few rank rows at a
// time are read from beginning to end: they often lie a multiple of 4 KiB apart, and so share the
// sets of the first-level cache, which have 8 to 12 ways.
template <int kRanks, typename T, typename LoadVec>
inline void ExpandStream(const AdapterExpandArgs& args, int32_t row, int32_t rank,
                         const LoadVec& load) {
  const T* w[kRanks];
  Vec factors[kRanks];
  for (int j = 0; j < kRanks; ++j) {
    w[j] = static_cast<const T*>(args.w[rank + j]) + args.column;
    factors[j] = Set(args.s[row * args.s_stride + rank + j]);
  }
  float* out = args.out + row * args.out_stride;
  const auto sums = [&](Vec sum, int64_t at) {
#pragma GCC unroll 4
    for (int j = 0; j < kRanks; ++j) sum = Fma(factors[j], load(w[j] + at), sum);
    return sum;
  };
  int64_t at = 0;
  for (; at + kLanes <= args.n; at += kLanes) {
    Store(out + at, sums(rank == 0 ? Zero() : Load(out + at), at));
  }
  if (at == args.n) return;
  const int tail = static_cast<int>(args.n - at);
  T last[kRanks][kLanes];
  for (int j = 0; j < kRanks; ++j) {
    CopyTail(w[j] + at, tail, last[j]);
    w[j] = last[j];
  }
  StoreN(out + at, sums(rank == 0 ? Zero() : LoadN(out + at, tail), 0), tail);
}

// All rank rows times one row of activations.
template <typename T, typename LoadVec>
inline void ExpandOneRow(const AdapterExpandArgs& args, int32_t row, const LoadVec& load) {
  if (args.num_ranks == 0) {
    std::memset(args.out + row * args.out_stride, 0, static_cast<size_t>(args.n) * sizeof(float));
  }
  int32_t rank = 0;
  for (; rank + 4 <= args.num_ranks; rank += 4) ExpandStream<4, T>(args, row, rank, load);
  for (; rank < args.num_ranks; ++rank) ExpandStream<1, T>(args, row, rank, load);
}

inline void AdapterExpand(const AdapterExpandArgs& args) {
  ForFactorType(args.type, [&]<typename T>(T, const auto& load) {
    constexpr int kVecs = kHas32Registers ? 4 : 2;
    int32_t row = 0;
    for (; row + 4 <= args.num_rows; row += 4) ExpandRows<4, kVecs, T>(args, row, load);
    for (; row < args.num_rows; ++row) ExpandOneRow<T>(args, row, load);
  });
}

}  // namespace
}  // namespace heddle::kernels::cpu
