// Attention of a tile of queries over a part of the context, on Vec, with a running softmax.
//
// Per block of 32 keys: keys and values become F32 once for all queries of the tile; keys are
// transposed, so that scores are sums over d with keys in the lanes and need no horizontal
// additions; values keep their order, so that outputs are sums over keys in order of position.
// Source: Dao et al., "FlashAttention", 2022 (running softmax over blocks).
// REQUIRES: one of the vec_*.h headers and vec_math.h included before this one.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/attention/attention_blocks.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/vec/vec_kv.h"

namespace heddle::kernels::cpu {
namespace {

static_assert(kMaxLanes % kLanes == 0 && kBlockTokens % (2 * kLanes) == 0);

// Queries per register tile, each with 2 vectors of scores or of values: half of the registers. It
// holds a whole query group of most models, so that decoding loads and converts each element once.
constexpr int kQueryTile = kLanes == 16 ? 8 : 4;

// Areas of AttendArgs::scratch.
struct Scratch {
  float* transposed;  // [padded_dim, kBlockTokens]
  float* values;      // [kBlockTokens, padded_dim], for more than 2 * kQueryTile queries
  float* weights;     // [kMaxQueries, kBlockTokens] scores, then their exponentials
  float* sums;        // [kMaxQueries, kMaxLanes]
  float* queries;     // [kMaxQueries, padded_dim] scaled
  float* decay;       // [kMaxQueries] factor of earlier results

  explicit Scratch(const AttendArgs& args) {
    int64_t block = static_cast<int64_t>(args.padded_dim) * kBlockTokens;
    transposed = args.scratch;
    values = transposed + block;
    queries = values + block;
    weights = queries + static_cast<int64_t>(args.padded_dim) * kMaxQueries;
    sums = weights + kMaxQueries * kBlockTokens;
    decay = sums + kMaxQueries * kMaxLanes;  // 16 + 1 <= 32 floats per query
  }
};

// Elements of a cache type as vectors of F32. kScaled: they are codes; their scales multiply the
// scores and the weights of their position.
struct F32Element {
  static constexpr int kBytes = 4;
  static constexpr bool kScaled = false;
  static Vec LoadAt(const char* row, int32_t i) {
    return Load(reinterpret_cast<const float*>(row) + i);
  }
};
struct F16Element {
  static constexpr int kBytes = 2;
  static constexpr bool kScaled = false;
  static Vec LoadAt(const char* row, int32_t i) {
    return FromF16(reinterpret_cast<const uint16_t*>(row) + i);
  }
};
struct BF16Element {
  static constexpr int kBytes = 2;
  static constexpr bool kScaled = false;
  static Vec LoadAt(const char* row, int32_t i) {
    return FromBF16(reinterpret_cast<const uint16_t*>(row) + i);
  }
};
struct Int8Element {
  static constexpr int kBytes = 1;
  static constexpr bool kScaled = true;
  static Vec LoadAt(const char* row, int32_t i) {
    return FromInt8(reinterpret_cast<const int8_t*>(row) + i);
  }
};
struct F8Element {
  static constexpr int kBytes = 1;
  static constexpr bool kScaled = false;
  static Vec LoadAt(const char* row, int32_t i) {
    return FromF8E4M3(reinterpret_cast<const uint8_t*>(row) + i);
  }
};

// kLanes elements from `i` on; those beyond the row's end read as 0.
template <typename Element>
inline Vec LoadPadded(const char* row, int32_t i, int32_t head_dim) {
  if (i + kLanes <= head_dim) return Element::LoadAt(row, i);
  char rest[kLanes * Element::kBytes] = {};
  if (i < head_dim) {
    std::memcpy(rest, row + i * Element::kBytes,
                static_cast<size_t>(head_dim - i) * Element::kBytes);
  }
  return Element::LoadAt(rest, 0);
}

inline void ScaleQueries(const AttendArgs& args, const Scratch& s) {
  for (int32_t q = 0; q < args.num_queries; ++q) {
    float* to = s.queries + static_cast<int64_t>(q) * args.padded_dim;
    for (int32_t d = 0; d < args.padded_dim; d += kLanes) {
      const auto* row = reinterpret_cast<const char*>(args.queries[q]);
      Store(to + d, LoadPadded<F32Element>(row, d, args.head_dim) * Set(args.scale));
    }
  }
}

// The keys of a block with the keys in the lanes, as F32.
template <typename Element>
struct FloatKeys {
  const float* transposed;  // [padded_dim, kBlockTokens]

  explicit FloatKeys(const Scratch& s) : transposed(s.transposed) {}
  Vec At(int32_t d, int32_t j) const { return Load(transposed + d * kBlockTokens + j); }
  static void Transpose(const AttendArgs& args, const BlockRows& rows, const Scratch& s);
};

template <typename Element>
HEDDLE_KERNEL_PART void FloatKeys<Element>::Transpose(const AttendArgs& args, const BlockRows& rows,
                                                      const Scratch& s) {
  for (int32_t j = 0; j < kBlockTokens; j += kLanes) {
    for (int32_t d = 0; d < args.head_dim; d += kLanes) {
      Vec block[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        block[i] = LoadPadded<Element>(rows.keys[j + i], d, args.head_dim);
      }
      TransposeTo(block, s.transposed + static_cast<int64_t>(d) * kBlockTokens + j, kBlockTokens);
    }
  }
}

// Writes the block's values as F32 to `to` [kBlockTokens, padded_dim].
template <typename Element>
inline void ConvertValues(const AttendArgs& args, const BlockRows& rows, float* to) {
  for (int32_t j = 0; j < rows.count; ++j) {
    float* out = to + static_cast<int64_t>(j) * args.padded_dim;
    for (int32_t d = 0; d < args.padded_dim; d += kLanes) {
      Store(out + d, LoadPadded<Element>(rows.values[j], d, args.head_dim));
    }
  }
}

constexpr int kBlockVecs = kBlockTokens / kLanes;

template <int kTile, typename Keys>
HEDDLE_KERNEL_PART void ScoreTile(const AttendArgs& args, const Scratch& s, int32_t q,
                                  RowPrefetch& prefetch) {
  // With few queries more keys are needed for as many independent sums.
  constexpr int kVecs = kTile <= 2 && kBlockVecs >= 4 ? 4 : 2;
  RowPrefetch ahead = prefetch;  // in registers
  const Keys keys(s);
  const int64_t stride = args.padded_dim;
  const int32_t head_dim = args.head_dim;
  for (int32_t j = 0; j < kBlockTokens; j += kVecs * kLanes) {
    Vec sums[kTile][kVecs];
#pragma GCC unroll 8
    for (int t = 0; t < kTile; ++t) {
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) sums[t][v] = Zero();
    }
    const float* query = s.queries + q * stride;
    for (int32_t d = 0; d < head_dim; ++d, ++query) {
      ahead.Next();
      Vec key[kVecs];
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) key[v] = keys.At(d, j + v * kLanes);
#pragma GCC unroll 8
      for (int t = 0; t < kTile; ++t) {
        Vec x = Set(query[t * stride]);
#pragma GCC unroll 4
        for (int v = 0; v < kVecs; ++v) sums[t][v] = Fma(key[v], x, sums[t][v]);
      }
    }
#pragma GCC unroll 8
    for (int t = 0; t < kTile; ++t) {
      float* to = s.weights + (q + t) * kBlockTokens + j;
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) Store(to + v * kLanes, sums[t][v]);
    }
  }
  prefetch = ahead;
}

template <int kQueries>
struct TileSize {
  static constexpr int kTile = kQueries;
};

// Calls run(TileSize, first query) for all queries, in tiles of kQueryTile, then of 4, 2 and 1.
template <typename Run>
inline void ForQueryTiles(int32_t num_queries, const Run& run) {
  int32_t q = 0;
  for (; q + kQueryTile <= num_queries; q += kQueryTile) run(TileSize<kQueryTile>{}, q);
  if (kQueryTile > 4 && q + 4 <= num_queries) {
    run(TileSize<4>{}, q);
    q += 4;
  }
  if (q + 2 <= num_queries) {
    run(TileSize<2>{}, q);
    q += 2;
  }
  if (q < num_queries) run(TileSize<1>{}, q);
}

inline float ExpOne(float x) {
  float lanes[kLanes];
  Store(lanes, Exp(Set(x)));
  return lanes[0];
}

// Keeps the scores of lanes j with lo <= first + j < hi; others become -infinity.
inline Vec MaskScores(Vec scores, int32_t first, int32_t lo, int32_t hi) {
  IntVec lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = first + i;
  IntVec visible = (lane >= lo) & (lane < hi);
  return Select(visible, scores, Set(-__builtin_inff()));
}

// Hides final scores that the mask of query q excludes. Returns the largest of the others and of
// the maximum so far.
inline float HideByTree(const AttendArgs& args, int32_t q, uint32_t seen, float* row) {
  float largest = args.max[q];
  for (int j = 0; j < kBlockTokens; ++j) {
    if ((seen >> j & 1) == 0) row[j] = -__builtin_inff();
    if (row[j] > largest) largest = row[j];
  }
  return largest;
}

// Computes the final scores of query q: scaled, capped, biased, -infinity for unseen positions.
// Returns the largest of them and of the maximum so far.
template <bool kScaled>
inline float FinishScores(const AttendArgs& args, const BlockRows& rows, int32_t begin, int32_t q,
                          float* row) {
  const int32_t lo = args.lower[q] - begin;
  const int32_t hi = args.upper[q] - begin < rows.count ? args.upper[q] - begin : rows.count;
  const uint32_t seen = SeenOfTree(args, q, begin);
  const bool all = lo <= 0 && hi == kBlockTokens && seen == UINT32_MAX;
  Vec largest = Set(args.max[q]);
#pragma GCC unroll 8
  for (int v = 0; v < kBlockVecs; ++v) {
    Vec score = Load(row + v * kLanes);
    if (kScaled) score = score * Load(rows.key_scales + v * kLanes);
    if (args.softcap > 0) score = Tanh(score / Set(args.softcap)) * Set(args.softcap);
    if (args.bias != nullptr) score = score + Load(args.bias[q] + begin + v * kLanes);
    if (!all) score = MaskScores(score, v * kLanes, lo, hi);
    largest = Max(largest, score);
    if (kScaled || args.softcap > 0 || args.bias != nullptr || !all) {
      Store(row + v * kLanes, score);
    }
  }
  return seen == UINT32_MAX ? ReduceMax(largest) : HideByTree(args, q, seen, row);
}

// Turns the scores of queries [q, q + kTile) into weights exp(score - max), for the block of
// positions from `begin` on. All queries' maxima come first and their decays in one vector, so that
// no query waits for another's.
template <bool kScaled, int kTile>
HEDDLE_KERNEL_PART void SoftmaxTile(const AttendArgs& args, const BlockRows& rows, const Scratch& s,
                                    int32_t begin, int32_t q) {
  static_assert(kTile <= kLanes);
  float before[kLanes] = {};
  float after[kLanes] = {};
  for (int t = 0; t < kTile; ++t) {
    before[t] = args.max[q + t];
    after[t] = FinishScores<kScaled>(args, rows, begin, q + t, s.weights + (q + t) * kBlockTokens);
    args.max[q + t] = after[t];
  }
  const Vec unchanged = Load(after);
  // If nothing has been seen yet, all scores are -infinity and their weights are 0 for any center.
  const Vec centers = Select(unchanged == Set(-__builtin_inff()), Zero(), unchanged);
  const Vec decays = Select(Load(before) == unchanged, Set(1.0f), Exp(Load(before) - centers));
  float center[kLanes];
  float decay[kLanes];
  Store(center, centers);
  Store(decay, decays);
#pragma GCC unroll 8
  for (int t = 0; t < kTile; ++t) {
    float* row = s.weights + (q + t) * kBlockTokens;
    float* sums = s.sums + (q + t) * kMaxLanes;
    Vec sum = Load(sums) * Set(decay[t]);
#pragma GCC unroll 8
    for (int v = 0; v < kBlockVecs; ++v) {
      Vec weights = ExpOfNegative(Load(row + v * kLanes) - Set(center[t]));
      sum = sum + weights;
      if (kScaled) weights = weights * Load(rows.value_scales + v * kLanes);
      Store(row + v * kLanes, weights);
    }
    Store(sums, sum);
    s.decay[q + t] = decay[t];
  }
}

// Values as they are in the cache, or as ConvertValues wrote them, from one position to the next.
template <typename Element>
struct CacheValues {
  const char* const* row;
  Vec At(int32_t column) const { return Element::LoadAt(*row, column); }
  void Next() { ++row; }
};
struct ConvertedValues {
  const float* row;
  int64_t stride;
  Vec At(int32_t column) const { return Load(row + column); }
  void Next() { row += stride; }
};

// The weights of a position, from one to the next, and the factors of earlier results. The keys of
// a query are beside each other, or the queries of a key.
struct WeightsByQuery {
  const float* weights;  // [num_queries, kBlockTokens]
  const float* decay;    // [num_queries]
  WeightsByQuery From(int32_t q) const { return {weights + q * kBlockTokens, decay + q}; }
  Vec At(int t) const { return Set(weights[t * kBlockTokens]); }
  void Next() { ++weights; }
};
struct WeightsByKey {
  const float* weights;  // [kBlockTokens, stride]
  const float* decay;    // [num_queries]
  int64_t stride;
  WeightsByKey From(int32_t q) const { return {weights + q, decay + q, stride}; }
  Vec At(int t) const { return Set(weights[t]); }
  void Next() { weights += stride; }
};

// acc = acc * decay + weights * values, for kTile queries and kVecs vectors of the head.
template <int kTile, int kVecs, typename Weights, typename Values>
HEDDLE_KERNEL_PART void ValueTile(const AttendArgs& args, const Weights& weights,
                                  const Values& values, int32_t q, int32_t column, int32_t count,
                                  RowPrefetch& prefetch) {
  RowPrefetch ahead = prefetch;  // in registers, as all that the loop needs
  Weights weight = weights.From(q);
  Values value = values;
  const int64_t stride = args.padded_dim;
  float* acc = args.acc + q * stride + column;
  Vec sums[kTile][kVecs];
#pragma GCC unroll 8
  for (int t = 0; t < kTile; ++t) {
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) {
      sums[t][v] = Load(acc + t * stride + v * kLanes) * Set(weight.decay[t]);
    }
  }
  for (int32_t j = 0; j < count; ++j) {
    ahead.Next();
    Vec row[kVecs];
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) row[v] = value.At(column + v * kLanes);
#pragma GCC unroll 8
    for (int t = 0; t < kTile; ++t) {
      const Vec w = weight.At(t);
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) sums[t][v] = Fma(row[v], w, sums[t][v]);
    }
    weight.Next();
    value.Next();
  }
#pragma GCC unroll 8
  for (int t = 0; t < kTile; ++t) {
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) Store(acc + t * stride + v * kLanes, sums[t][v]);
  }
  prefetch = ahead;
}

// From `column` on, in tiles of kVecs vectors and narrower ones for the rest.
template <int kTile, int kVecs, typename Weights, typename Values>
inline void ValueRows(const AttendArgs& args, const Weights& weights, const Values& values,
                      int32_t q, int32_t column, int32_t count, RowPrefetch& prefetch) {
  for (; column + kVecs * kLanes <= args.padded_dim; column += kVecs * kLanes) {
    ValueTile<kTile, kVecs>(args, weights, values, q, column, count, prefetch);
  }
  if constexpr (kVecs > 1) {
    ValueRows<kTile, kVecs / 2>(args, weights, values, q, column, count, prefetch);
  }
}

template <typename Values>
inline void ValueBlock(const AttendArgs& args, const Scratch& s, const Values& values,
                       int32_t count, RowPrefetch& prefetch) {
  const WeightsByQuery weights = {s.weights, s.decay};
  ForQueryTiles(args.num_queries, [&](auto size, int32_t q) {
    constexpr int kTile = decltype(size)::kTile;
    // With few queries more columns are needed for as many independent sums.
    constexpr int kVecs = kTile == kQueryTile ? 2 : kTile == 1 ? 8 : 4;
    ValueRows<kTile, kVecs>(args, weights, values, q, /*column=*/0, count, prefetch);
  });
}

template <typename Element, typename Keys = FloatKeys<Element>>
inline void AttendOver(const AttendArgs& args) {
  Scratch s(args);
  std::memset(s.sums, 0, sizeof(float) * kMaxLanes * static_cast<size_t>(args.num_queries));
  ScaleQueries(args, s);
  // Converting pays if several tiles read the result; a padded head has to be converted.
  bool direct = args.num_queries <= 2 * kQueryTile && args.head_dim == args.padded_dim;
  const int64_t row_bytes = static_cast<int64_t>(args.head_dim) * Element::kBytes;
  BlockQueue<Element::kScaled, /*kAhead=*/1> queue(args, row_bytes);
  for (int32_t begin = args.begin; begin < args.end; begin += kBlockTokens) {
    queue.Advance();
    const BlockRows& rows = queue.current();
    const int32_t count = rows.count;
    RowPrefetch keys_ahead(queue.upcoming().keys, row_bytes);
    RowPrefetch values_ahead(queue.upcoming().values, row_bytes);
    Keys::Transpose(args, rows, s);
    ForQueryTiles(args.num_queries, [&](auto size, int32_t q) {
      constexpr int kTile = decltype(size)::kTile;
      ScoreTile<kTile, Keys>(args, s, q, keys_ahead);
      SoftmaxTile<Element::kScaled, kTile>(args, rows, s, begin, q);
    });
    keys_ahead.Rest();
    if (direct) {
      ValueBlock(args, s, CacheValues<Element>{rows.values}, count, values_ahead);
    } else {
      ConvertValues<Element>(args, rows, s.values);
      ValueBlock(args, s, ConvertedValues{s.values, args.padded_dim}, count, values_ahead);
    }
    values_ahead.Rest();
  }
  for (int32_t q = 0; q < args.num_queries; ++q) {
    args.sum[q] = ReduceAdd(Load(s.sums + q * kMaxLanes));
  }
}

inline void Attend(const AttendArgs& args) {
  switch (args.type) {
    case KvType::kF32:
      return AttendOver<F32Element>(args);
    case KvType::kF16:
      return AttendOver<F16Element>(args);
    case KvType::kBF16:
      return AttendOver<BF16Element>(args);
    case KvType::kInt8:
      return AttendOver<Int8Element>(args);
    case KvType::kF8E4M3:
      return AttendOver<F8Element>(args);
  }
}

inline void MergeParts(float part_max, float part_sum, const float* part_acc, int32_t n, float* max,
                       float* sum, float* acc) {
  if (part_sum == 0) return;  // no position of the part was visible
  float joint = part_max > *max ? part_max : *max;
  float old_scale = ExpOne(*max - joint);
  float part_scale = ExpOne(part_max - joint);
  *max = joint;
  *sum = *sum * old_scale + part_sum * part_scale;
  for (int32_t i = 0; i < n; i += kLanes) {  // n is padded
    Store(acc + i, Fma(Load(part_acc + i), Set(part_scale), Load(acc + i) * Set(old_scale)));
  }
}

inline void FinishRow(float max, float sum, const float* acc, int32_t n, float sink, float* out,
                      float* lse) {
  float joint = max;
  float scale = 1;
  if (sink > -__builtin_inff()) {
    joint = sink > max ? sink : max;
    scale = ExpOne(max - joint);
    sum = sum * scale + ExpOne(sink - joint);
  }
  Vec factor = Set(scale / sum);
  int32_t i = 0;
  for (; i + kLanes <= n; i += kLanes) Store(out + i, Load(acc + i) * factor);
  if (i < n) StoreN(out + i, LoadN(acc + i, n - i) * factor, n - i);
  if (lse != nullptr) *lse = joint + __builtin_logf(sum);
}

constexpr AttentionKernels kAttentionKernels = {Attend, MergeParts, FinishRow};

}  // namespace
}  // namespace heddle::kernels::cpu
