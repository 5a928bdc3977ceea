// Numbers of F32 as matrix instructions take them, which multiply BF16: each is the sum of terms of
// BF16, its value rounded, what that leaves, rounded, and so on. Two terms lose 2^-17 of it, far
// less than activations in BF16 have lost; three, for activations in F32, lose nothing that counts.
// A product is the sum, in F32, of those products of terms that exceed what is lost: three of four,
// and six of nine.
#pragma once

#include "kernels/cuda/primitives/group.cuh"
#include "kernels/recurrence.h"

namespace heddle::kernels::cuda::recurrence {

// Activations of T, as which all numbers begin, decide.
template <typename T>
inline constexpr int kTermsOf = sizeof(T) == sizeof(float) ? 3 : 2;
template <int kTerms>
inline constexpr int kProductsOf = kTerms*(kTerms + 1) / 2;

// The terms of two numbers, each a pair.
template <int kTerms>
struct TermPairs {
  uint32_t term[kTerms];
};
template <int kTerms>
HEDDLE_DEVICE TermPairs<kTerms> TermsOf(float a, float b) {
  const BFloat16 type{};
  TermPairs<kTerms> pairs;
  HEDDLE_UNROLL
  for (int i = 0; i < kTerms; ++i) {
    pairs.term[i] = Pack2(a, b, type);
    a -= LowFloat(pairs.term[i], type);
    b -= HighFloat(pairs.term[i], type);
  }
  return pairs;
}

// c += a * b, of which `product` is one: 0 of the first terms, then the next largest.
template <int kTerms>
HEDDLE_DEVICE void MultiplyTerm(int product, float (&c)[4], const uint32_t (&a)[kTerms][4],
                                const uint32_t (&b)[kTerms][2]) {
  constexpr int kLeft[] = {0, 0, 1, 1, 0, 2}, kRight[] = {0, 1, 0, 1, 2, 0};
  Mma16816(c, a[kLeft[product]], b[kRight[product]], BFloat16());
}

HEDDLE_DEVICE void Clear(float (&c)[4]) {
  HEDDLE_UNROLL
  for (int e = 0; e < 4; ++e) c[e] = 0;
}

// A right matrix of 16 x 8 elements, each term `distance` from the one before it. `from`: where the
// lanes' rows of both halves of 8 begin; lanes 16 to 31 have those of lanes 0 to 15.
template <int kTerms>
HEDDLE_DEVICE void LoadRights(Shared<BFloat16> of, int from, int distance,
                              uint32_t (&b)[kTerms][2]) {
  HEDDLE_UNROLL
  for (int term = 0; term < kTerms; term += 2) {
    const bool has_next = term + 1 < kTerms;
    uint32_t words[4];
    LoadMatrix4(words, of, from + term * distance + (has_next && Lane() >= 16 ? distance : 0));
    HEDDLE_UNROLL
    for (int i = 0; i < (has_next ? 4 : 2); ++i) b[term + i / 2][i % 2] = words[i];
  }
}

// Queries of a part, and behind them its keys: [query or key][at] the terms of key_dim elements,
// zeros behind them. While they are made, a row's space has its F32.
template <int kWidth, int kTerms>  // elements of a term, key_dim or more
struct TermRows {
  static constexpr int kKeys = kScanRows;  // the first row of keys
  static constexpr int kPitch = kTerms * kWidth + 8;
  Shared<BFloat16> of;

  HEDDLE_DEVICE static int At(int row, int d) { return row * kPitch + d; }

  HEDDLE_DEVICE void SetFour(int row, int d, const Group<float, 4>& x) const {
    const auto first = TermsOf<kTerms>(x.item[0], x.item[1]);
    const auto second = TermsOf<kTerms>(x.item[2], x.item[3]);
    HEDDLE_UNROLL
    for (int i = 0; i < kTerms; ++i) {
      of.SetAs<Vec8>(At(row, d) + i * kWidth, {{first.term[i], second.term[i]}});
    }
  }
  HEDDLE_DEVICE void Set(int row, int d, float x) const {
    HEDDLE_UNROLL
    for (int i = 0; i < kTerms; ++i) {
      const BFloat16 term = RoundTo(x, BFloat16());
      of.Set(At(row, d) + i * kWidth, term);
      x -= ToFloat(term);
    }
  }
  HEDDLE_DEVICE void SetWhole(int row, int d, float x) const { of.SetAs<float>(At(row, 2 * d), x); }
  HEDDLE_DEVICE float Whole(int row, int d) const { return of.GetAs<float>(At(row, 2 * d)); }
  // Zeros from element d on. By a warp.
  HEDDLE_DEVICE void Clear(int row, int d) const {
    for (int i = d + Lane(); i < kWidth; i += 32) Set(row, i, 0.0f);
  }

  // Fragments of elements [d, d + 16): of kScanRows rows as a left matrix, of kTile rows as a right
  // one whose columns are rows, and of kScanRows rows as two right ones whose rows are rows, of
  // elements [d, d + 8) and [d + 8, d + 16).
  HEDDLE_DEVICE void Left(int row, int d, uint32_t (&a)[kTerms][4]) const {
    const int from = At(row + Lane() % 16, d + Lane() / 16 * 8);
    HEDDLE_UNROLL
    for (int i = 0; i < kTerms; ++i) LoadMatrix4(a[i], of, from + i * kWidth);
  }
  HEDDLE_DEVICE void Right(int row, int d, uint32_t (&b)[kTerms][2]) const {
    LoadRights(of, At(row + Lane() % 8, d + Lane() / 8 % 2 * 8), kWidth, b);
  }
  HEDDLE_DEVICE void Across(int row, int d, uint32_t (&b)[2][kTerms][2]) const {
    const int from = At(row + Lane() % 16, d + Lane() / 16 * 8);
    HEDDLE_UNROLL
    for (int term = 0; term < kTerms; ++term) {
      uint32_t words[4];
      LoadMatrix4Transposed(words, of, from + term * kWidth);
      HEDDLE_UNROLL
      for (int i = 0; i < 4; ++i) b[i / 2][term][i % 2] = words[i];
    }
  }
};

}  // namespace heddle::kernels::cuda::recurrence
