// Scores of positions for attention over chosen ones, on Vec: keys lie in the lanes, so that sums
// over a head's dimensions and over heads need no horizontal additions and have one order.
// REQUIRES: one of the vec_*.h headers, vec_math.h and attention_kernels.h included before this
// one.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/selection_table.h"

namespace heddle::kernels::cpu {
namespace {

static_assert(kScoredKeys == kBlockTokens);

template <typename Element>
void TransposeKeysOf(const TransposeKeysArgs& args) {
  for (int32_t j = 0; j < kScoredKeys; j += kLanes) {
    Vec scale = Set(1.0f);
    if (Element::kScaled) {
      float scales[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        std::memcpy(scales + i, args.scales[j + i], sizeof(float));
      }
      scale = Load(scales);
    }
    for (int32_t d = 0; d < args.dim; d += kLanes) {
      Vec block[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        block[i] = LoadPadded<Element>(static_cast<const char*>(args.keys[j + i]), d, args.dim);
      }
      float* const out = static_cast<float*>(args.out) + int64_t{d} * kScoredKeys + j;
      TransposeTo(block, out, kScoredKeys);
      if (!Element::kScaled) continue;
      for (int i = 0; i < kLanes; ++i) {
        float* const row = out + int64_t{i} * kScoredKeys;
        Store(row, Load(row) * scale);
      }
    }
  }
}

void TransposeKeys(const TransposeKeysArgs& args) {
  switch (args.type) {
    case KvType::kF32:
      return TransposeKeysOf<F32Element>(args);
    case KvType::kF16:
      return TransposeKeysOf<F16Element>(args);
    case KvType::kBF16:
      return TransposeKeysOf<BF16Element>(args);
    case KvType::kInt8:
      return TransposeKeysOf<Int8Element>(args);
    case KvType::kF8E4M3:
      return TransposeKeysOf<F8Element>(args);
  }
}

const void* KeepQueries(const PackQueriesArgs& args) { return args.queries; }

// Heads whose sums with 2 * kLanes keys are in registers, beside two vectors of keys and a
// broadcast.
constexpr int kHeadTile = kLanes == 16 ? 8 : 6;

// Calls run(TileSize, first head) for all heads.
template <typename Run>
inline void ForHeadTiles(int32_t n_heads, const Run& run) {
  int32_t h = 0;
  for (; h + kHeadTile <= n_heads; h += kHeadTile) run(TileSize<kHeadTile>{}, h);
  if (h + 4 <= n_heads) {
    run(TileSize<4>{}, h);
    h += 4;
  }
  for (; h < n_heads; ++h) run(TileSize<1>{}, h);
}

// Adds the parts of kTile heads from `h` on to the scores of 2 * kLanes keys.
template <int kTile>
HEDDLE_KERNEL_PART void ScoreHeads(const ScoreKeysArgs& args, int32_t h, int32_t j,
                                   Vec (&total)[2]) {
  Vec sums[kTile][2];
#pragma GCC unroll 8
  for (int t = 0; t < kTile; ++t) sums[t][0] = sums[t][1] = Zero();
  const float* query = static_cast<const float*>(args.queries) + int64_t{h} * args.dim;
  const float* key = static_cast<const float*>(args.keys) + j;
  for (int32_t d = 0; d < args.dim; ++d, ++query, key += kScoredKeys) {
    const Vec first = Load(key);
    const Vec second = Load(key + kLanes);
#pragma GCC unroll 8
    for (int t = 0; t < kTile; ++t) {
      const Vec x = Set(query[int64_t{t} * args.dim]);
      sums[t][0] = Fma(first, x, sums[t][0]);
      sums[t][1] = Fma(second, x, sums[t][1]);
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < kTile; ++t) {
    const Vec weight = Set(args.weights[h + t]);
    for (int v = 0; v < 2; ++v) total[v] = Fma(Max(sums[t][v], Zero()), weight, total[v]);
  }
}

void ScoreKeys(const ScoreKeysArgs& args) {
  for (int32_t j = 0; j < kScoredKeys; j += 2 * kLanes) {
    Vec total[2] = {Zero(), Zero()};
    ForHeadTiles(args.n_heads, [&](auto tile, int32_t h) {
      ScoreHeads<decltype(tile)::kTile>(args, h, j, total);
    });
    Store(args.out + j, total[0]);
    Store(args.out + j + kLanes, total[1]);
  }
}

constexpr SelectionKernels kSelectionKernels = {TransposeKeys, KeepQueries, ScoreKeys};

}  // namespace
}  // namespace heddle::kernels::cpu
