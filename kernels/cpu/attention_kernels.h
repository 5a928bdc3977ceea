// Attention of a tile of queries over a stretch of context, on Vec, with a running softmax.
//
// Per block of 32 keys: keys and values become F32 once for all queries of the tile; keys are
// transposed, so that scores are sums over d with keys in the lanes and need no horizontal
// additions; values keep their order, so that outputs are sums over keys in order of position.
// Source: Dao et al., "FlashAttention", 2022 (running softmax over blocks).
// REQUIRES: one of the vec_*.h headers and vec_math.h included before this one.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/kernel_table.h"

namespace heddle::kernels::cpu {
namespace {

static_assert(kMaxLanes % kLanes == 0 && kBlockTokens % (2 * kLanes) == 0);

// Queries per register tile: with 2 vectors of scores, or up to 4 of values, for each of them.
constexpr int kScoreTile = kLanes == 16 ? 8 : 4;
constexpr int kValueTile = kLanes == 16 ? 4 : 2;

// Areas of AttendArgs::scratch.
struct Scratch {
  float* keys;        // [kBlockTokens, padded_dim]
  float* transposed;  // [padded_dim, kBlockTokens]
  float* values;      // [kBlockTokens, padded_dim]
  float* weights;     // [kMaxQueries, kBlockTokens] scores, then their exponentials
  float* sums;        // [kMaxQueries, kMaxLanes]
  float* decay;       // [kMaxQueries] what earlier results are multiplied by

  explicit Scratch(const AttendArgs& args) {
    int64_t block = static_cast<int64_t>(args.padded_dim) * kBlockTokens;
    keys = args.scratch;
    transposed = keys + block;
    values = transposed + block;
    weights = values + block;
    sums = weights + kMaxQueries * kBlockTokens;
    decay = sums + kMaxQueries * kMaxLanes;  // 16 + 1 <= 32 floats per query
  }
};

inline void LoadElements(KvType type, const void* from, int64_t offset, int32_t n, float* out) {
  if (type == KvType::kF32) {
    std::memcpy(out, static_cast<const float*>(from) + offset, static_cast<size_t>(n) * 4);
    return;
  }
  const auto* halves = static_cast<const uint16_t*>(from) + offset;
  auto* convert = type == KvType::kF16 ? FromF16 : FromBF16;
  int32_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(out + i, convert(halves + i));
  if (i == n) return;
  uint16_t rest[kLanes] = {};
  std::memcpy(rest, halves + i, static_cast<size_t>(n - i) * 2);
  StoreN(out + i, convert(rest), n - i);
}

// Walks the runs block by block.
struct RunCursor {
  const KeyRun* run;
  int32_t offset = 0;
};

// The next `count` positions as F32 rows; the rest of the block is zero.
inline void LoadBlock(const AttendArgs& args, int32_t count, RunCursor& cursor, Scratch& s) {
  for (int32_t j = 0; j < kBlockTokens; ++j) {
    float* key = s.keys + static_cast<int64_t>(j) * args.padded_dim;
    float* value = s.values + static_cast<int64_t>(j) * args.padded_dim;
    int32_t filled = j < count ? args.head_dim : 0;
    if (filled > 0) {
      int64_t from = static_cast<int64_t>(cursor.offset) * args.head_dim;
      LoadElements(args.type, cursor.run->keys, from, filled, key);
      LoadElements(args.type, cursor.run->values, from, filled, value);
      if (++cursor.offset == cursor.run->num_tokens) {
        ++cursor.run;
        cursor.offset = 0;
      }
    }
    for (int32_t i = filled; i < args.padded_dim; ++i) key[i] = value[i] = 0.0f;
  }
  for (int32_t d = 0; d < args.padded_dim; d += kLanes) {
    for (int32_t j = 0; j < kBlockTokens; j += kLanes) {
      Transpose(s.keys + static_cast<int64_t>(j) * args.padded_dim + d, args.padded_dim,
                s.transposed + static_cast<int64_t>(d) * kBlockTokens + j, kBlockTokens);
    }
  }
}

template <int kTile>
inline void ScoreTile(const AttendArgs& args, const Scratch& s, int32_t q) {
  const float* query = args.queries + static_cast<int64_t>(q) * args.padded_dim;
  for (int32_t j = 0; j < kBlockTokens; j += 2 * kLanes) {
    Vec sums[kTile][2];
#pragma GCC unroll 8
    for (int t = 0; t < kTile; ++t) sums[t][0] = sums[t][1] = Zero();
    const float* key = s.transposed + j;
    for (int32_t d = 0; d < args.head_dim; ++d, key += kBlockTokens) {
      Vec k0 = Load(key);
      Vec k1 = Load(key + kLanes);
#pragma GCC unroll 8
      for (int t = 0; t < kTile; ++t) {
        Vec x = Set(query[t * args.padded_dim + d]);
        sums[t][0] = Fma(k0, x, sums[t][0]);
        sums[t][1] = Fma(k1, x, sums[t][1]);
      }
    }
#pragma GCC unroll 8
    for (int t = 0; t < kTile; ++t) {
      Store(s.weights + (q + t) * kBlockTokens + j, sums[t][0]);
      Store(s.weights + (q + t) * kBlockTokens + j + kLanes, sums[t][1]);
    }
  }
}

inline void ScoreBlock(const AttendArgs& args, const Scratch& s) {
  int32_t q = 0;
  for (; q + kScoreTile <= args.num_queries; q += kScoreTile) ScoreTile<kScoreTile>(args, s, q);
  if (kScoreTile > 4 && q + 4 <= args.num_queries) {
    ScoreTile<4>(args, s, q);
    q += 4;
  }
  for (; q + 2 <= args.num_queries; q += 2) ScoreTile<2>(args, s, q);
  if (q < args.num_queries) ScoreTile<1>(args, s, q);
}

inline float ExpOne(float x) {
  float lanes[kLanes];
  Store(lanes, Exp(Set(x)));
  return lanes[0];
}

// Lanes j with lo <= first + j < hi keep their score, others get -infinity.
inline Vec MaskScores(Vec scores, int32_t first, int32_t lo, int32_t hi) {
  IntVec lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = first + i;
  IntVec visible = (lane >= lo) & (lane < hi);
  return Select(visible, scores, Set(-__builtin_inff()));
}

// Scores of query q to weights exp(score - max), where [lo, hi) of the block are visible to it.
inline void SoftmaxRow(const AttendArgs& args, const Scratch& s, int32_t q, int32_t lo,
                       int32_t hi) {
  float* row = s.weights + q * kBlockTokens;
  float* sums = s.sums + q * kMaxLanes;
  s.decay[q] = 1.0f;
  if (lo >= hi) {
    std::memset(row, 0, kBlockTokens * sizeof(float));
    return;
  }
  bool all = lo == 0 && hi == kBlockTokens;
  Vec largest = Set(args.max[q]);
  for (int32_t j = 0; j < kBlockTokens; j += kLanes) {
    Vec score = Load(row + j);
    if (args.softcap > 0) score = Tanh(score / Set(args.softcap)) * Set(args.softcap);
    if (!all) score = MaskScores(score, j, lo, hi);
    largest = Max(largest, score);
    Store(row + j, score);
  }
  float max = ReduceMax(largest);
  if (max != args.max[q]) s.decay[q] = ExpOne(args.max[q] - max);
  args.max[q] = max;
  Vec center = Set(max == -__builtin_inff() ? 0.0f : max);
  Vec sum = Load(sums) * Set(s.decay[q]);
  for (int32_t j = 0; j < kBlockTokens; j += kLanes) {
    Vec weight = Exp(Load(row + j) - center);
    sum = sum + weight;
    Store(row + j, weight);
  }
  Store(sums, sum);
}

// acc = acc * decay + weights * values, for kTile queries and kVecs vectors of the head.
template <int kTile, int kVecs>
inline void ValueTile(const AttendArgs& args, const Scratch& s, int32_t q, int32_t column,
                      int32_t count) {
  float* acc = args.acc + static_cast<int64_t>(q) * args.padded_dim + column;
  Vec sums[kTile][kVecs];
#pragma GCC unroll 4
  for (int t = 0; t < kTile; ++t) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      sums[t][v] = Load(acc + t * args.padded_dim + v * kLanes) * Set(s.decay[q + t]);
    }
  }
  const float* weight = s.weights + q * kBlockTokens;
  const float* value = s.values + column;
  for (int32_t j = 0; j < count; ++j, value += args.padded_dim) {
#pragma GCC unroll 4
    for (int t = 0; t < kTile; ++t) {
      Vec w = Set(weight[t * kBlockTokens + j]);
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) sums[t][v] = Fma(Load(value + v * kLanes), w, sums[t][v]);
    }
  }
#pragma GCC unroll 4
  for (int t = 0; t < kTile; ++t) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) Store(acc + t * args.padded_dim + v * kLanes, sums[t][v]);
  }
}

template <int kTile>
inline void ValueRows(const AttendArgs& args, const Scratch& s, int32_t q, int32_t count) {
  int32_t column = 0;
  for (; column + 4 * kLanes <= args.padded_dim; column += 4 * kLanes) {
    ValueTile<kTile, 4>(args, s, q, column, count);
  }
  for (; column < args.padded_dim; column += kLanes) {
    ValueTile<kTile, 1>(args, s, q, column, count);
  }
}

inline void Attend(const AttendArgs& args) {
  Scratch s(args);
  std::memset(s.sums, 0, sizeof(float) * kMaxLanes * static_cast<size_t>(args.num_queries));
  RunCursor cursor{args.runs};
  for (int32_t begin = args.begin; begin < args.end; begin += kBlockTokens) {
    int32_t count = args.end - begin < kBlockTokens ? args.end - begin : kBlockTokens;
    LoadBlock(args, count, cursor, s);
    ScoreBlock(args, s);
    for (int32_t q = 0; q < args.num_queries; ++q) {
      int32_t lo = args.lower[q] > begin ? args.lower[q] - begin : 0;
      int32_t hi = args.upper[q] - begin < count ? args.upper[q] - begin : count;
      SoftmaxRow(args, s, q, lo, hi);
    }
    int32_t q = 0;
    for (; q + kValueTile <= args.num_queries; q += kValueTile) {
      ValueRows<kValueTile>(args, s, q, count);
    }
    for (; q < args.num_queries; ++q) ValueRows<1>(args, s, q, count);
  }
  for (int32_t q = 0; q < args.num_queries; ++q) {
    args.sum[q] = ReduceAdd(Load(s.sums + q * kMaxLanes));
  }
}

inline void MergeParts(float part_max, float part_sum, const float* part_acc, int32_t n, float* max,
                       float* sum, float* acc) {
  if (part_sum == 0) return;  // nothing of the part was visible
  float joint = part_max > *max ? part_max : *max;
  float old_scale = ExpOne(*max - joint);
  float part_scale = ExpOne(part_max - joint);
  *max = joint;
  *sum = *sum * old_scale + part_sum * part_scale;
  for (int32_t i = 0; i < n; i += kLanes) {  // n is padded
    Store(acc + i, Fma(Load(part_acc + i), Set(part_scale), Load(acc + i) * Set(old_scale)));
  }
}

inline float FinishRow(float max, float sum, const float* acc, int32_t n, float sink, float* out) {
  float joint = sink > max ? sink : max;
  float scale = ExpOne(max - joint);
  float total = sum * scale + ExpOne(sink - joint);
  Vec factor = Set(scale / total);
  int32_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(out + i, Load(acc + i) * factor);
  if (i < n) StoreN(out + i, LoadN(acc + i, n - i) * factor, n - i);
  return joint + __builtin_logf(total);
}

constexpr AttentionKernels kAttentionKernels = {Attend, MergeParts, FinishRow};

}  // namespace
}  // namespace heddle::kernels::cpu
