// Parts of attention in BF16, by dot products or by tiles: exponentials as weights, and values of
// neighbouring positions interleaved.
// REQUIRES: vec_avx512.h, vec_math.h, attention_blocks.h and vec_kv_bf16.h included before this
// one.
#pragma once

#include <cstdint>

namespace heddle::kernels::cpu {
namespace {

constexpr int kKeyPairs = kBlockTokens / 2;

// The queries of a tile. Their bounds rise with the query.
struct QueryRange {
  int32_t first;
  int32_t last;
};

// Whether all of them see all of the block of `count` keys from `begin` on.
inline bool SeesAll(const AttendArgs& args, QueryRange queries, int32_t begin, int32_t count) {
  return count == kBlockTokens && args.lower[queries.last] <= begin &&
         args.upper[queries.first] >= begin + kBlockTokens;
}
// Whether none of them sees any of it.
inline bool SeesNothing(const AttendArgs& args, QueryRange queries, int32_t begin) {
  return args.upper[queries.last] <= begin || args.lower[queries.first] >= begin + kBlockTokens;
}

// exp(x - center) for x <= center, with a relative error of 3e-6, where BF16 has 2e-3; it is 1 for
// equal arguments, and NaN stays NaN. 2^f for |f| <= 1/2 is our own minimax fit of degree 4.
inline Vec WeightOf(Vec x, Vec center) {
  const Vec log2 = (x - center) * Set(0x1.715476p0f);
  const Vec bounded = _mm512_max_ps(Set(-1000.0f), log2);  // the second one if one is NaN
  const Vec whole = _mm512_roundscale_ps(bounded, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const Vec f = bounded - whole;
  Vec p = Fma(Set(0x1.3a02ccp-7f), f, Set(0x1.c9fc46p-5f));
  p = Fma(p, f, Set(0x1.ec0378p-3f));
  p = Fma(p, f, Set(0x1.62e12cp-1f));
  p = Fma(p, f, Set(1.0f));
  return _mm512_scalef_ps(p, whole);
}

// Dimensions [d, d + 32) of two rows a and b of values, interleaved; [0] has the first 16 of them.
struct ValuePair {
  __m512i part[2];

  ValuePair(__m512i a, __m512i b) {
    alignas(64) static constexpr struct Indices {
      uint16_t at[2][32];
      constexpr Indices() : at() {
        for (int i = 0; i < 64; ++i) {
          at[i / 32][i % 32] = static_cast<uint16_t>(i / 2 + i % 2 * 32);
        }
      }
    } kIndices;
    for (int h = 0; h < 2; ++h) {
      part[h] = _mm512_permutex2var_epi16(a, _mm512_load_si512(kIndices.at[h]), b);
    }
  }
};

// Writes the block's values to `out` [kKeyPairs][padded_dim]. Rows beyond the block's end repeat
// its last one, with a weight of zero. kWhole: heads are whole vectors of 32 dimensions.
template <typename Element, bool kWhole>
HEDDLE_KERNEL_PART void InterleaveRows(const AttendArgs& args, const BlockRows& rows,
                                       int32_t* out) {
  const int32_t load_dim = kWhole ? INT32_MAX : args.head_dim;
  for (int32_t j = 0; j < kBlockTokens; j += 2, out += args.padded_dim) {
    for (int32_t d = 0; d < args.padded_dim; d += 2 * kLanes) {
      const ValuePair pair(Element::LoadAt(rows.values[j], d, load_dim),
                           Element::LoadAt(rows.values[j + 1], d, load_dim));
      _mm512_storeu_si512(out + d, pair.part[0]);
      if (kWhole || d + kLanes < args.padded_dim) {
        _mm512_storeu_si512(out + d + kLanes, pair.part[1]);
      }
    }
  }
}

}  // namespace
}  // namespace heddle::kernels::cpu
