// Numbers of F32 as matrix instructions take them, which multiply BF16: each is the sum of two
// terms of BF16, its value rounded and what that leaves, rounded, so that 2^-17 of it are lost. Of
// a product, the terms' products are summed in F32 but that of both small ones (2^-18).
#pragma once

#include "kernels/cuda/primitives/group.cuh"
#include "kernels/recurrence.h"

namespace heddle::kernels::cuda::recurrence {

// Two terms of two numbers, each a pair.
struct TermPairs {
  uint32_t high;
  uint32_t low;
};
HEDDLE_DEVICE TermPairs TermsOf(float a, float b) {
  const BFloat16 type{};
  const uint32_t high = Pack2(a, b, type);
  return {high, Pack2(a - LowFloat(high, type), b - HighFloat(high, type), type)};
}

// c += a * b, of which `term` 0 is the product of the high terms, 1 and 2 those with one low.
HEDDLE_DEVICE void MultiplyTerm(int term, float (&c)[4], const uint32_t (&a)[2][4],
                                const uint32_t (&b)[2][2]) {
  Mma16816(c, a[term == 2], b[term == 1], BFloat16());
}

HEDDLE_DEVICE void Clear(float (&c)[4]) {
  HEDDLE_UNROLL
  for (int e = 0; e < 4; ++e) c[e] = 0;
}

// Queries of a part, and behind them its keys: [query or key][at] both terms of key_dim elements,
// zeros behind them. While they are made, a row's space has its F32.
template <int kWidth>  // elements of a term, key_dim or more
struct TermRows {
  static constexpr int kKeys = kScanRows;  // the first row of keys
  static constexpr int kPitch = 2 * kWidth + 8;
  Shared<BFloat16> of;

  HEDDLE_DEVICE static int At(int row, int d) { return row * kPitch + d; }

  HEDDLE_DEVICE void SetFour(int row, int d, const Group<float, 4>& x) const {
    const TermPairs first = TermsOf(x.item[0], x.item[1]);
    const TermPairs second = TermsOf(x.item[2], x.item[3]);
    of.SetAs<Vec8>(At(row, d), {{first.high, second.high}});
    of.SetAs<Vec8>(At(row, d) + kWidth, {{first.low, second.low}});
  }
  HEDDLE_DEVICE void Set(int row, int d, float x) const {
    const BFloat16 high = RoundTo(x, BFloat16());
    of.Set(At(row, d), high);
    of.Set(At(row, d) + kWidth, RoundTo(x - ToFloat(high), BFloat16()));
  }
  HEDDLE_DEVICE void SetWhole(int row, int d, float x) const { of.SetAs<float>(At(row, 2 * d), x); }
  HEDDLE_DEVICE float Whole(int row, int d) const { return of.GetAs<float>(At(row, 2 * d)); }
  // Zeros from element d on. By a warp.
  HEDDLE_DEVICE void Clear(int row, int d) const {
    for (int i = d + Lane(); i < kWidth; i += 32) {
      of.Set(At(row, i), BFloat16());
      of.Set(At(row, i) + kWidth, BFloat16());
    }
  }

  // Fragments of elements [d, d + 16): of kScanRows rows as a left matrix, of kTile rows as a right
  // one whose columns are rows, and of kScanRows rows as two right ones whose rows are rows, of
  // elements [d, d + 8) and [d + 8, d + 16).
  HEDDLE_DEVICE void Left(int row, int d, uint32_t (&a)[2][4]) const {
    const int from = At(row + Lane() % 16, d + Lane() / 16 * 8);
    LoadMatrix4(a[0], of, from);
    LoadMatrix4(a[1], of, from + kWidth);
  }
  HEDDLE_DEVICE void Right(int row, int d, uint32_t (&b)[2][2]) const {
    uint32_t words[4];
    LoadMatrix4(words, of,
                At(row + Lane() % 8, d + Lane() / 8 % 2 * 8) + (Lane() >= 16 ? kWidth : 0));
    HEDDLE_UNROLL
    for (int i = 0; i < 4; ++i) b[i / 2][i % 2] = words[i];
  }
  HEDDLE_DEVICE void Across(int row, int d, uint32_t (&b)[2][2][2]) const {
    const int from = At(row + Lane() % 16, d + Lane() / 16 * 8);
    HEDDLE_UNROLL
    for (int term = 0; term < 2; ++term) {
      uint32_t words[4];
      LoadMatrix4Transposed(words, of, from + term * kWidth);
      HEDDLE_UNROLL
      for (int i = 0; i < 4; ++i) b[i / 2][term][i % 2] = words[i];
    }
  }
};

}  // namespace heddle::kernels::cuda::recurrence
