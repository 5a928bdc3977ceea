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
#include "kernels/cpu/vec_kv.h"

namespace heddle::kernels::cpu {
namespace {

static_assert(kMaxLanes % kLanes == 0 && kBlockTokens % (2 * kLanes) == 0);

// Queries per register tile, each with 2 vectors of scores or of values: half of the registers. A
// whole query group of most models, so that decoding loads and converts each element once.
constexpr int kQueryTile = kLanes == 16 ? 8 : 4;

// Areas of AttendArgs::scratch.
struct Scratch {
  float* transposed;  // [padded_dim, kBlockTokens]
  float* values;      // [kBlockTokens, padded_dim], for more than 2 * kQueryTile queries
  float* weights;     // [kMaxQueries, kBlockTokens] scores, then their exponentials
  float* sums;        // [kMaxQueries, kMaxLanes]
  float* decay;       // [kMaxQueries] what earlier results are multiplied by

  explicit Scratch(const AttendArgs& args) {
    int64_t block = static_cast<int64_t>(args.padded_dim) * kBlockTokens;
    transposed = args.scratch;
    values = transposed + block;
    weights = values + block;
    sums = weights + kMaxQueries * kBlockTokens;
    decay = sums + kMaxQueries * kMaxLanes;  // 16 + 1 <= 32 floats per query
  }
};

// Elements of a cache type as vectors of F32. kScaled: they are codes, whose scales go to the
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

// kLanes elements from `i` on, of which those past the row's end read as 0.
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

// Where the rows of one block of keys and values lie. Rows past `count` repeat the last one: what
// is computed from them is masked or not read.
struct BlockRows {
  const char* keys[kBlockTokens];
  const char* values[kBlockTokens];
  const char* key_scales_at[kBlockTokens];  // of scaled types only, F32 at any alignment
  const char* value_scales_at[kBlockTokens];
  float key_scales[kBlockTokens];  // once LoadScales has been called; 0 past `count`
  float value_scales[kBlockTokens];
  int32_t count;

  void LoadScales() {
    for (int32_t j = 0; j < count; ++j) {
      std::memcpy(key_scales + j, key_scales_at[j], sizeof(float));
      std::memcpy(value_scales + j, value_scales_at[j], sizeof(float));
    }
    for (int32_t j = count; j < kBlockTokens; ++j) key_scales[j] = value_scales[j] = 0;
  }
};

// Walks the runs block by block.
struct RunCursor {
  const KeyRun* run = nullptr;
  int32_t offset = 0;

  template <bool kScaled>
  void NextBlock(int32_t count, int64_t row_bytes, BlockRows& rows) {
    rows.count = count;
    for (int32_t j = 0; j < count; ++j) {
      rows.keys[j] = static_cast<const char*>(run->keys) + offset * row_bytes;
      rows.values[j] = static_cast<const char*>(run->values) + offset * row_bytes;
      if (kScaled) {
        rows.key_scales_at[j] = static_cast<const char*>(run->key_scales) + offset * 4;
        rows.value_scales_at[j] = static_cast<const char*>(run->value_scales) + offset * 4;
        if (j % 16 == 0 || offset == 0) {
          __builtin_prefetch(rows.key_scales_at[j]);
          __builtin_prefetch(rows.value_scales_at[j]);
        }
      }
      if (++offset == run->num_tokens) {
        ++run;
        offset = 0;
      }
    }
    for (int32_t j = count; j < kBlockTokens; ++j) {
      rows.keys[j] = rows.keys[count - 1];
      rows.values[j] = rows.values[count - 1];
    }
  }
};

// The blocks of a call one after the other, and what comes kAhead later: pages lie anywhere
// in memory, in pieces too short for the processor's own prefetching, so a later block is asked for
// while an earlier one is computed, line by line between its loads.
template <bool kScaled, int32_t kAhead>
class BlockQueue {
 public:
  static_assert(kAhead <= kMaxBlocksAhead);

  BlockQueue(const AttendArgs& args, int64_t row_bytes)
      : row_bytes_(row_bytes),
        cursor_{args.runs},
        left_(args.end - args.begin),
        ahead_{args.ahead},
        ahead_left_(args.ahead_tokens) {
    for (int32_t i = 0; i < kAhead; ++i) Append();
  }

  // Makes the first or the next block the current one. REQUIRES: there is one.
  void Advance() {
    Append();
    if (kScaled) blocks_[appended_ % kSlots].LoadScales();
  }
  const BlockRows& current() const { return blocks_[appended_ % kSlots]; }
  // The block to be asked for meanwhile; the current one if there is none.
  const BlockRows& upcoming() const {
    return ended_ ? current() : blocks_[(appended_ - 1) % kSlots];
  }

 private:
  static constexpr int32_t kSlots = kAhead + 1;

  void Append() {
    BlockRows& rows = blocks_[appended_++ % kSlots];
    if (left_ > 0) {
      Take(cursor_, left_, rows);
    } else if (ahead_left_ > 0) {
      Take(ahead_, ahead_left_, rows);
    } else {
      ended_ = true;
    }
  }
  void Take(RunCursor& cursor, int32_t& left, BlockRows& rows) {
    const int32_t count = left < kBlockTokens ? left : kBlockTokens;
    cursor.NextBlock<kScaled>(count, row_bytes_, rows);
    left -= count;
  }

  const int64_t row_bytes_;
  RunCursor cursor_;
  int32_t left_;
  RunCursor ahead_;
  int32_t ahead_left_;
  int32_t appended_ = 0;
  bool ended_ = false;
  BlockRows blocks_[kSlots];
};

// Asks for the cache line at `offset` bytes of row j, keys and values.
inline void AskForLine(const BlockRows& rows, int32_t j, int64_t offset) {
  __builtin_prefetch(rows.keys[j] + offset);
  __builtin_prefetch(rows.values[j] + offset);
}

template <typename Element>
inline void TransposeKeys(const AttendArgs& args, const BlockRows& rows, const BlockRows& upcoming,
                          const Scratch& s) {
  for (int32_t j = 0; j < kBlockTokens; j += kLanes) {
    for (int32_t d = 0; d < args.head_dim; d += kLanes) {
      Vec block[kLanes];
      const bool new_line = d * Element::kBytes % 64 == 0;
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        if (new_line) AskForLine(upcoming, j + i, d * Element::kBytes);
        block[i] = LoadPadded<Element>(rows.keys[j + i], d, args.head_dim);
      }
      TransposeTo(block, s.transposed + static_cast<int64_t>(d) * kBlockTokens + j, kBlockTokens);
    }
  }
}

template <typename Element>
inline void ConvertValues(const AttendArgs& args, const BlockRows& rows, const Scratch& s) {
  for (int32_t j = 0; j < rows.count; ++j) {
    float* out = s.values + static_cast<int64_t>(j) * args.padded_dim;
    for (int32_t d = 0; d < args.padded_dim; d += kLanes) {
      Store(out + d, LoadPadded<Element>(rows.values[j], d, args.head_dim));
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

template <int kQueries>
struct TileSize {
  static constexpr int kTile = kQueries;
};

// run(TileSize, first query) for all queries, in tiles of kQueryTile and then of 4, 2 and 1.
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

inline void ScoreBlock(const AttendArgs& args, const Scratch& s) {
  ForQueryTiles(args.num_queries,
                [&](auto size, int32_t q) { ScoreTile<decltype(size)::kTile>(args, s, q); });
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
template <bool kScaled>
inline void SoftmaxRow(const AttendArgs& args, const BlockRows& rows, const Scratch& s, int32_t q,
                       int32_t lo, int32_t hi) {
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
    if (kScaled) score = score * Load(rows.key_scales + j);
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
    Vec weight = ExpOfNegative(Load(row + j) - center);
    sum = sum + weight;
    if (kScaled) weight = weight * Load(rows.value_scales + j);
    Store(row + j, weight);
  }
  Store(sums, sum);
}

// Values as they lie in the cache, or as ConvertValues left them.
template <typename Element>
struct CacheValues {
  const BlockRows& rows;
  Vec LoadAt(int32_t j, int32_t column) const { return Element::LoadAt(rows.values[j], column); }
};
struct ConvertedValues {
  const float* values;
  int64_t stride;
  Vec LoadAt(int32_t j, int32_t column) const { return Load(values + j * stride + column); }
};

// acc = acc * decay + weights * values, for kTile queries and kVecs vectors of the head.
template <int kTile, int kVecs, typename Values>
inline void ValueTile(const AttendArgs& args, const Scratch& s, const Values& values, int32_t q,
                      int32_t column, int32_t count) {
  float* acc = args.acc + static_cast<int64_t>(q) * args.padded_dim + column;
  Vec sums[kTile][kVecs];
#pragma GCC unroll 8
  for (int t = 0; t < kTile; ++t) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      sums[t][v] = Load(acc + t * args.padded_dim + v * kLanes) * Set(s.decay[q + t]);
    }
  }
  const float* weight = s.weights + q * kBlockTokens;
  for (int32_t j = 0; j < count; ++j) {
    Vec value[kVecs];
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) value[v] = values.LoadAt(j, column + v * kLanes);
#pragma GCC unroll 8
    for (int t = 0; t < kTile; ++t) {
      Vec w = Set(weight[t * kBlockTokens + j]);
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) sums[t][v] = Fma(value[v], w, sums[t][v]);
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < kTile; ++t) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) Store(acc + t * args.padded_dim + v * kLanes, sums[t][v]);
  }
}

template <int kTile, typename Values>
inline void ValueRows(const AttendArgs& args, const Scratch& s, const Values& values, int32_t q,
                      int32_t count) {
  // Few queries need more columns for as many independent sums.
  constexpr int kVecs = kTile == kQueryTile ? 2 : 4;
  int32_t column = 0;
  for (; column + kVecs * kLanes <= args.padded_dim; column += kVecs * kLanes) {
    ValueTile<kTile, kVecs>(args, s, values, q, column, count);
  }
  for (; column < args.padded_dim; column += kLanes) {
    ValueTile<kTile, 1>(args, s, values, q, column, count);
  }
}

template <typename Values>
inline void ValueBlock(const AttendArgs& args, const Scratch& s, const Values& values,
                       int32_t count) {
  ForQueryTiles(args.num_queries, [&](auto size, int32_t q) {
    ValueRows<decltype(size)::kTile>(args, s, values, q, count);
  });
}

template <typename Element>
inline void AttendOver(const AttendArgs& args) {
  Scratch s(args);
  std::memset(s.sums, 0, sizeof(float) * kMaxLanes * static_cast<size_t>(args.num_queries));
  // Converting pays where several tiles read the result; a padded head has to be converted.
  bool direct = args.num_queries <= 2 * kQueryTile && args.head_dim == args.padded_dim;
  const int64_t row_bytes = static_cast<int64_t>(args.head_dim) * Element::kBytes;
  BlockQueue<Element::kScaled, /*kAhead=*/2> queue(args, row_bytes);
  for (int32_t begin = args.begin; begin < args.end; begin += kBlockTokens) {
    queue.Advance();
    const BlockRows& rows = queue.current();
    const int32_t count = rows.count;
    TransposeKeys<Element>(args, rows, queue.upcoming(), s);
    ScoreBlock(args, s);
    for (int32_t q = 0; q < args.num_queries; ++q) {
      int32_t lo = args.lower[q] > begin ? args.lower[q] - begin : 0;
      int32_t hi = args.upper[q] - begin < count ? args.upper[q] - begin : count;
      SoftmaxRow<Element::kScaled>(args, rows, s, q, lo, hi);
    }
    if (direct) {
      ValueBlock(args, s, CacheValues<Element>{rows}, count);
    } else {
      ConvertValues<Element>(args, rows, s);
      ValueBlock(args, s, ConvertedValues{s.values, args.padded_dim}, count);
    }
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
