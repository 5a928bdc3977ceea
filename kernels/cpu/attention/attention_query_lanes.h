// Attention of a tile of more than four queries over a part of the context, with the queries in the
// lanes: keys become F32 once for all queries of the tile and are broadcast, so that they need no
// transposition, each element of them is one load for eight or sixteen queries, and the softmax
// runs down the vectors instead of across them. Values have dimensions in the lanes, as in
// attention_kernels.h.
//
// Every query adds in the order in which attention_kernels.h does: scores over d, outputs and sums
// over the positions, of which the sums have one part for each place modulo kLanes. So a query has
// the same bits whichever of the two computes it, and which one does may depend on the batch.
// Register tiles are for 16 registers and multiply-adds that take four cycles at two a cycle: more
// than eight sums, so that none is waited for, and few enough loads.
// REQUIRES: vec_avx2.h, vec_math.h and attention_kernels.h included before this one.
#pragma once

#include <cstdint>
#include <cstring>

namespace heddle::kernels::cpu {
namespace {

static_assert(kLanes == 8 && kBlockTokens == 32);

// Areas of AttendArgs::scratch.
struct LaneScratch {
  int32_t stride;  // num_queries rounded up to whole vectors
  float* keys;     // [padded_dim / kLanes][kBlockTokens][kLanes]
  float* values;   // [kBlockTokens, padded_dim], unless they are read from the cache
  float* queries;  // per vector of queries [padded_dim][kLanes], scaled
  float* weights;  // [kBlockTokens][stride] scores, then their exponentials
  float* sums;     // [kLanes][stride], for the positions at each place modulo kLanes
  float* max;      // [stride]
  float* decay;    // [stride] factor of earlier results

  explicit LaneScratch(const AttendArgs& args)
      : stride((args.num_queries + kLanes - 1) / kLanes * kLanes) {
    const int64_t block = int64_t{args.padded_dim} * kBlockTokens;
    keys = args.scratch;
    values = keys + block;
    queries = values + block;
    weights = queries + int64_t{args.padded_dim} * kMaxQueries;
    sums = weights + kMaxQueries * kBlockTokens;
    max = sums + kMaxQueries * kLanes;
    decay = max + kMaxQueries;
  }
};
static_assert(AttendScratchFloats(kMaxLanes) >= kMaxLanes * (2 * kBlockTokens + kMaxQueries) +
                                                    kMaxQueries * (kBlockTokens + kLanes + 2));

// The query in a lane; lanes behind the last one repeat it, and their results are not read.
inline int32_t QueryOfLane(const AttendArgs& args, int32_t lane) {
  return lane < args.num_queries ? lane : args.num_queries - 1;
}

HEDDLE_KERNEL_PART void PackQueries(const AttendArgs& args, const LaneScratch& s) {
  for (int32_t q = 0; q < s.stride; q += kLanes) {
    float* to = s.queries + int64_t{q} * args.padded_dim;
    for (int32_t d = 0; d < args.padded_dim; d += kLanes) {
      Vec rows[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        const float* row = args.queries[QueryOfLane(args, q + i)];
        rows[i] = LoadPadded<F32Element>(reinterpret_cast<const char*>(row), d, args.head_dim) *
                  Set(args.scale);
      }
      TransposeTo(rows, to + d * kLanes, kLanes);
    }
  }
}

template <typename Element>
HEDDLE_KERNEL_PART void SpreadKeys(const AttendArgs& args, const BlockRows& rows,
                                   const LaneScratch& s) {
  for (int32_t j = 0; j < kBlockTokens; ++j) {
    float* to = s.keys + j * kLanes;
    for (int32_t d = 0; d < args.head_dim; d += kLanes) {
      Store(to + d * kBlockTokens, LoadPadded<Element>(rows.keys[j], d, args.head_dim));
    }
  }
}

// Scores of kVecs vectors of queries from `q` on and kKeys keys from `j` on.
template <int kVecs, int kKeys>
HEDDLE_KERNEL_PART void ScoreLanes(const AttendArgs& args, const LaneScratch& s, int32_t q,
                                   int32_t j, RowPrefetch& prefetch) {
  RowPrefetch ahead = prefetch;  // in registers
  const float* query = s.queries + int64_t{q} * args.padded_dim;
  const int64_t next_query = int64_t{args.padded_dim} * kLanes;
  const float* key = s.keys + j * kLanes;
  Vec sums[kVecs][kKeys];
#pragma GCC unroll 2
  for (int v = 0; v < kVecs; ++v) {
#pragma GCC unroll 16
    for (int k = 0; k < kKeys; ++k) sums[v][k] = Zero();
  }
  for (int32_t d = 0; d < args.head_dim; d += kLanes, key += kBlockTokens * kLanes) {
    ahead.Next();
    ahead.Next();
#pragma GCC unroll 4
    for (int i = 0; i < kLanes; ++i, query += kLanes) {
      Vec x[kVecs];
#pragma GCC unroll 2
      for (int v = 0; v < kVecs; ++v) x[v] = Load(query + v * next_query);
#pragma GCC unroll 16
      for (int k = 0; k < kKeys; ++k) {
        const Vec element = Set(key[k * kLanes + i]);
#pragma GCC unroll 2
        for (int v = 0; v < kVecs; ++v) sums[v][k] = Fma(element, x[v], sums[v][k]);
      }
    }
  }
  float* to = s.weights + int64_t{j} * s.stride + q;
#pragma GCC unroll 16
  for (int k = 0; k < kKeys; ++k, to += s.stride) {
#pragma GCC unroll 2
    for (int v = 0; v < kVecs; ++v) Store(to + v * kLanes, sums[v][k]);
  }
  prefetch = ahead;
}

// Queries [first, end), whole vectors.
struct LaneRange {
  int32_t first;
  int32_t end;
};

// The vectors of queries that see any of the block from `begin` on: bounds rise with the query. For
// the others the block changes nothing.
inline LaneRange SeeingLanes(const AttendArgs& args, int32_t begin) {
  int32_t first = 0;
  int32_t end = args.num_queries;
  while (first < end && args.upper[first] <= begin) ++first;
  while (end > first && args.lower[end - 1] >= begin + kBlockTokens) --end;
  if (first == end) return {0, 0};
  return {first / kLanes * kLanes, (end + kLanes - 1) / kLanes * kLanes};
}

inline void ScoreBlock(const AttendArgs& args, const LaneScratch& s, const LaneRange& lanes,
                       RowPrefetch& prefetch) {
  int32_t q = lanes.first;
  for (; q + 2 * kLanes <= lanes.end; q += 2 * kLanes) {  // 6 + 6 + 5 + 5 + 5 + 5 keys
    int32_t j = 0;
    for (; j < 12; j += 6) ScoreLanes<2, 6>(args, s, q, j, prefetch);
    for (; j < kBlockTokens; j += 5) ScoreLanes<2, 5>(args, s, q, j, prefetch);
  }
  if (q == lanes.end) return;
  ScoreLanes<1, 11>(args, s, q, 0, prefetch);
  ScoreLanes<1, 11>(args, s, q, 11, prefetch);
  ScoreLanes<1, 10>(args, s, q, 22, prefetch);
}

// Hides the scores of the vector of queries at `q` that bounds and trees exclude.
inline void HideLanes(const AttendArgs& args, const LaneScratch& s, int32_t begin, int32_t count,
                      int32_t q) {
  float* scores = s.weights + q;
  const int32_t last = QueryOfLane(args, q + kLanes - 1);
  const bool sees_all =
      count == kBlockTokens && args.lower[last] <= begin && args.upper[q] >= begin + kBlockTokens;
  if (!sees_all) {
    IntVec lower;
    IntVec upper;
    for (int i = 0; i < kLanes; ++i) {
      const int32_t row = QueryOfLane(args, q + i);
      lower[i] = args.lower[row] - begin;
      upper[i] = args.upper[row] - begin < count ? args.upper[row] - begin : count;
    }
    for (int32_t j = 0; j < kBlockTokens; ++j) {
      float* score = scores + int64_t{j} * s.stride;
      Store(score, Select((lower <= j) & (upper > j), Load(score), Set(-__builtin_inff())));
    }
  }
  if (args.tree == nullptr) return;
  for (int i = 0; i < kLanes; ++i) {
    const uint32_t seen = SeenOfTree(args, QueryOfLane(args, q + i), begin);
    for (int32_t j = 0; j < kBlockTokens && seen != UINT32_MAX; ++j) {
      if ((seen >> j & 1) == 0) scores[int64_t{j} * s.stride + i] = -__builtin_inff();
    }
  }
}

// Computes the final scores of the vector of queries at `q`. Returns the largest of each query.
template <bool kScaled>
inline Vec FinishLanes(const AttendArgs& args, const BlockRows& rows, const LaneScratch& s,
                       int32_t begin, int32_t q) {
  float* scores = s.weights + q;
  if (kScaled || args.softcap > 0) {
    for (int32_t j = 0; j < kBlockTokens; ++j) {
      float* at = scores + int64_t{j} * s.stride;
      Vec score = Load(at);
      if (kScaled) score = score * Set(rows.key_scales[j]);
      if (args.softcap > 0) score = Tanh(score / Set(args.softcap)) * Set(args.softcap);
      Store(at, score);
    }
  }
  HideLanes(args, s, begin, rows.count, q);
  Vec largest[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) largest[i] = Load(s.max + q);
  for (int32_t j = 0; j < kBlockTokens; j += 4) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      largest[i] = Max(largest[i], Load(scores + int64_t{j + i} * s.stride));
    }
  }
  return Max(Max(largest[0], largest[1]), Max(largest[2], largest[3]));
}

// Turns the scores of the vector of queries at `q` into weights exp(score - max).
template <bool kScaled>
HEDDLE_KERNEL_PART void SoftmaxLanes(const AttendArgs& args, const BlockRows& rows,
                                     const LaneScratch& s, int32_t begin, int32_t q) {
  const Vec before = Load(s.max + q);
  const Vec largest = FinishLanes<kScaled>(args, rows, s, begin, q);
  // If nothing has been seen yet, all scores are -infinity and their weights are 0 for any center.
  const Vec center = Select(largest == Set(-__builtin_inff()), Zero(), largest);
  const Vec decay = Select(before == largest, Set(1.0f), Exp(before - center));
  Store(s.max + q, largest);
  Store(s.decay + q, decay);
  for (int32_t place = 0; place < kLanes; ++place) {
    float* weights = s.weights + int64_t{place} * s.stride + q;
    float* sums = s.sums + int64_t{place} * s.stride + q;
    Vec sum = Load(sums) * decay;
#pragma GCC unroll 4
    for (int v = 0; v < kBlockVecs; ++v) {
      float* at = weights + int64_t{v * kLanes} * s.stride;
      Vec weight = ExpOfNegative(Load(at) - center);
      sum = sum + weight;
      if (kScaled) weight = weight * Set(rows.value_scales[v * kLanes + place]);
      Store(at, weight);
    }
    Store(sums, sum);
  }
}

// Adds the block's values for queries [first, end), whole vectors. One vector takes them straight
// from the cache, each element once; more are cut into tiles of six, and of four for the rest.
template <typename Values>
inline void AddValues(const AttendArgs& args, const LaneScratch& s, const Values& values,
                      const LaneRange& lanes, int32_t count, RowPrefetch& prefetch) {
  const WeightsByKey weights = {s.weights, s.decay, s.stride};
  int32_t q = lanes.first;
  if (lanes.end - q == kLanes) {
    ValueRows<8, 1>(args, weights, values, q, /*column=*/0, count, prefetch);
    return;
  }
  const int32_t rest = (lanes.end - q) % 6;  // 0, 2 or 4: none, two or one tile of four
  const int32_t sixes_end = lanes.end - (rest == 2 ? 8 : rest);
  for (; q < sixes_end; q += 6)
    ValueRows<6, 2>(args, weights, values, q, /*column=*/0, count, prefetch);
  for (; q < lanes.end; q += 4)
    ValueRows<4, 2>(args, weights, values, q, /*column=*/0, count, prefetch);
}

inline void StartLanes(const AttendArgs& args, const LaneScratch& s) {
  std::memset(s.sums, 0, sizeof(float) * kLanes * static_cast<size_t>(s.stride));
  for (int32_t q = 0; q < s.stride; q += kLanes) Store(s.max + q, Set(-__builtin_inff()));
  const auto unused = static_cast<size_t>(s.stride - args.num_queries);
  std::memset(args.acc + int64_t{args.num_queries} * args.padded_dim, 0,
              sizeof(float) * unused * static_cast<size_t>(args.padded_dim));
  PackQueries(args, s);
}

// Adds the parts of each sum as ReduceAdd does.
inline void FinishSums(const AttendArgs& args, const LaneScratch& s) {
  for (int32_t width = kLanes / 2; width > 0; width /= 2) {
    for (int32_t i = 0; i < width * s.stride; i += kLanes) {
      Store(s.sums + i, Load(s.sums + i) + Load(s.sums + i + width * s.stride));
    }
  }
  std::memcpy(args.max, s.max, sizeof(float) * static_cast<size_t>(args.num_queries));
  std::memcpy(args.sum, s.sums, sizeof(float) * static_cast<size_t>(args.num_queries));
}

template <typename Element>
inline void AttendByLanes(const AttendArgs& args) {
  const LaneScratch s(args);
  StartLanes(args, s);
  const bool direct = s.stride == kLanes && args.head_dim == args.padded_dim;
  const int64_t row_bytes = int64_t{args.head_dim} * Element::kBytes;
  BlockQueue<Element::kScaled, /*kAhead=*/1> queue(args, row_bytes);
  for (int32_t begin = args.begin; begin < args.end; begin += kBlockTokens) {
    queue.Advance();
    const BlockRows& rows = queue.current();
    RowPrefetch keys_ahead(queue.upcoming().keys, row_bytes);
    RowPrefetch values_ahead(queue.upcoming().values, row_bytes);
    const LaneRange lanes = SeeingLanes(args, begin);
    if (lanes.first < lanes.end) {
      SpreadKeys<Element>(args, rows, s);
      ScoreBlock(args, s, lanes, keys_ahead);
      for (int32_t q = lanes.first; q < lanes.end; q += kLanes) {
        SoftmaxLanes<Element::kScaled>(args, rows, s, begin, q);
      }
      if (direct) {
        AddValues(args, s, CacheValues<Element>{rows.values}, lanes, rows.count, values_ahead);
      } else {
        ConvertValues<Element>(args, rows, s.values);
        AddValues(args, s, ConvertedValues{s.values, args.padded_dim}, lanes, rows.count,
                  values_ahead);
      }
    }
    keys_ahead.Rest();
    values_ahead.Rest();
  }
  FinishSums(args, s);
}

}  // namespace
}  // namespace heddle::kernels::cpu
