// Tiles of eight queries for attention by BF16 dot products: their scratch memory, the positions
// that they see, and their softmax. attention_avx512_bf16.cc describes the layout of a tile.
// REQUIRES: vec_avx512.h, vec_math.h and attention_kernels.h included before this one.
#pragma once

#include <cstdint>

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/vec/vec_kv_bf16.h"

#include "kernels/cpu/attention/attention_bf16_parts.h"

namespace heddle::kernels::cpu {
namespace {

constexpr int kTileRows = 8;
// Areas of AttendArgs::scratch.
struct DotScratch {
  int32_t quads;      // of four dimensions, rounded up to an even number
  int32_t all_quads;  // of a padded head
  int32_t* queries;   // per tile [all_quads][kTileRows][2] pairs
  char* keys;         // [kBlockTokens, padded_dim] BF16, if the cache's rows cannot be read as such
  int32_t* values;    // [kKeyPairs][padded_dim] values of neighbouring positions
  float* scores;      // per tile [kKeyPairs][kTileRows][2]; weights: [kKeyPairs][kTileRows] pairs
  // Per tile [kTileRows][2]; both lanes of a query are equal, except in `sum`, where each has a
  // part.
  float* max;
  float* sums;
  float* decay;  // factor of earlier results

  explicit DotScratch(const AttendArgs& args)
      : quads((args.head_dim + 7) / 8 * 2), all_quads(args.padded_dim / 4) {
    constexpr int64_t kStateFloats = kMaxQueries * 2;
    float* rest = args.scratch;
    scores = Take(rest, kMaxQueries * kBlockTokens);
    max = Take(rest, kStateFloats);
    sums = Take(rest, kStateFloats);
    decay = Take(rest, kStateFloats);
    keys = reinterpret_cast<char*>(Take(rest, int64_t{args.padded_dim} * kBlockTokens / 2));
    values = reinterpret_cast<int32_t*>(Take(rest, int64_t{args.padded_dim} * kKeyPairs));
    queries = reinterpret_cast<int32_t*>(rest);
  }

  int32_t* QueriesOf(int32_t tile) const {
    return queries + int64_t{tile} * all_quads * kTileRows * 2;
  }
  float* ScoresOf(int32_t tile) const { return scores + tile * kTileRows * kBlockTokens; }
  static int32_t StateOf(int32_t tile) { return tile * kTileRows * 2; }

 private:
  static float* Take(float*& rest, int64_t floats) {
    float* taken = rest;
    rest += floats;
    return taken;
  }
};
static_assert(AttendScratchFloats(kMaxLanes) >=
              kMaxQueries * (kBlockTokens + 6) + kMaxLanes * (kBlockTokens + kMaxQueries / 2));

inline int32_t NumTiles(const AttendArgs& args) {
  return (args.num_queries + kTileRows - 1) / kTileRows;
}
inline int32_t RowsOfTile(const AttendArgs& args, int32_t tile) {
  const int32_t left = args.num_queries - tile * kTileRows;
  return left < kTileRows ? left : kTileRows;
}

// Sets the lanes of each query to two floats of neighbouring keys.
inline Vec SetPair(const float* pair) {
  return _mm512_broadcast_f32x2(
      _mm_castsi128_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(pair))));
}
inline Vec SwapKeys(Vec v) { return _mm512_permute_ps(v, 0xb1); }

// The positions of a block that each lane of a tile sees: [lower, upper), counted from the block's
// first. Missing rows of a tile see the same as its last one.
struct Visible {
  IntVec lower;
  IntVec upper;

  Visible(const AttendArgs& args, int32_t tile, int32_t begin, int32_t count) {
    const int32_t first = tile * kTileRows;
    const int32_t last = RowsOfTile(args, tile) - 1;
    int64_t bounds[2][kTileRows];
    for (int r = 0; r < kTileRows; ++r) {
      const int32_t q = first + (r < last ? r : last);
      const int32_t end = args.upper[q] - begin;
      bounds[0][r] = args.lower[q] - begin;
      bounds[1][r] = end < count ? end : count;
    }
    lower = BothLanes(bounds[0]);
    upper = BothLanes(bounds[1]);
  }
  static IntVec BothLanes(const int64_t (&of_rows)[kTileRows]) {
    return reinterpret_cast<IntVec>(
        _mm512_shuffle_epi32(_mm512_loadu_si512(of_rows), _MM_PERM_CCAA));
  }
  // Scores of keys j and j + 1 with -infinity where a query does not see them.
  Vec Mask(Vec scores, int32_t j) const {
    const IntVec key = j + reinterpret_cast<IntVec>(_mm512_set1_epi64(int64_t{1} << 32));
    return Select((key >= lower) & (key < upper), scores, Set(-__builtin_inff()));
  }
};

inline QueryRange QueriesOf(const AttendArgs& args, int32_t tile) {
  const int32_t first = tile * kTileRows;
  return {first, first + RowsOfTile(args, tile) - 1};
}

// Hides final scores that the masks of the tile's queries exclude.
inline void HideByTree(const AttendArgs& args, int32_t begin, int32_t tile, float* scores) {
  for (int32_t r = 0; r < RowsOfTile(args, tile); ++r) {
    const uint32_t seen = SeenOfTree(args, tile * kTileRows + r, begin);
    for (int32_t j = 0; j < kBlockTokens && seen != UINT32_MAX; ++j) {
      if ((seen >> j & 1) == 0) scores[j / 2 * kLanes + 2 * r + j % 2] = -__builtin_inff();
    }
  }
}

// Computes the final scores of a tile. Returns the largest of each query.
template <bool kScaled>
inline Vec FinishTile(const AttendArgs& args, const BlockRows& rows, int32_t begin, int32_t tile,
                      float* scores, Vec largest) {
  if (kScaled || args.softcap > 0) {
    for (int p = 0; p < kKeyPairs; ++p) {
      Vec score = Load(scores + p * kLanes);
      if (kScaled) score = score * SetPair(rows.key_scales + 2 * p);
      if (args.softcap > 0) score = Tanh(score / Set(args.softcap)) * Set(args.softcap);
      Store(scores + p * kLanes, score);
    }
  }
  if (!SeesAll(args, QueriesOf(args, tile), begin, rows.count)) {
    const Visible visible(args, tile, begin, rows.count);
    for (int p = 0; p < kKeyPairs; ++p) {
      Store(scores + p * kLanes, visible.Mask(Load(scores + p * kLanes), 2 * p));
    }
  }
  if (args.tree != nullptr) HideByTree(args, begin, tile, scores);
  Vec other = Load(scores);
#pragma GCC unroll 16
  for (int p = 1; p < kKeyPairs; p += 2) {
    largest = Max(largest, Load(scores + p * kLanes));
    if (p + 1 < kKeyPairs) other = Max(other, Load(scores + (p + 1) * kLanes));
  }
  largest = Max(largest, other);
  return Max(largest, SwapKeys(largest));
}

// Turns scores into weights exp(score - max), for the block of positions from `begin` on.
template <bool kScaled>
HEDDLE_KERNEL_PART void SoftmaxRows(const AttendArgs& args, const BlockRows& rows,
                                    const DotScratch& s, int32_t begin, int32_t tile) {
  float* scores = s.ScoresOf(tile);
  const int32_t state = DotScratch::StateOf(tile);
  const Vec before = Load(s.max + state);
  const Vec largest = FinishTile<kScaled>(args, rows, begin, tile, scores, before);
  // If nothing has been seen yet, all scores are -infinity and their weights are 0 for any center.
  const Vec center = Select(largest == Set(-__builtin_inff()), Zero(), largest);
  const Vec decay = Select(before == largest, Set(1.0f), WeightOf(before, center));
  Vec sum[2] = {Load(s.sums + state) * decay, Zero()};
#pragma GCC unroll 4
  for (int p = 0; p < kKeyPairs; p += 2) {
    Vec weights[2];
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      weights[i] = WeightOf(Load(scores + (p + i) * kLanes), center);
      sum[i] = sum[i] + weights[i];
      if (kScaled) weights[i] = weights[i] * SetPair(rows.value_scales + 2 * (p + i));
    }
    _mm512_storeu_si512(scores + p * kTileRows,
                        AsBits(_mm512_cvtne2ps_pbh(weights[1], weights[0])));
  }
  Store(s.max + state, largest);
  Store(s.sums + state, sum[0] + sum[1]);
  Store(s.decay + state, decay);
}

}  // namespace
}  // namespace heddle::kernels::cpu
