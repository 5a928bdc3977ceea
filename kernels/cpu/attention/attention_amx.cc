// Attention by tiles of BF16 (Intel AMX), for caches whose elements BF16 holds exactly: BF16
// itself, int8 and FP8 E4M3. Queries and softmax weights are rounded to BF16 (nearest even);
// maxima, exponentials and their sums are in F32. Other caches are computed as at the avx512_bf16
// level.
//
// 16 queries and a block of 32 keys at a time:
//   scores^T [key][query] = K Q^T   Rows of keys are a tile as they lie in the cache, and the
//                                   queries' pairs of dimensions are transposed once per call. A
//                                   vector is 16 queries and one key: maxima run down the vectors.
//   weights [query][key]            exponentials, transposed as pairs of keys
//   acc [query][dim] += W V         values of neighbouring positions are interleaved once for all
//                                   queries.
// Bits depend on the positions alone: a block's products are one instruction, dimensions go in
// steps of 32, and a query has the same sums in any tile. Numerics of the instruction: tiles_amx.h.
#include "kernels/cpu/vec/vec_avx512.h"

#include "kernels/cpu/vec/vec_math.h"

#include "kernels/cpu/attention/attention_blocks.h"
#include "kernels/cpu/tiles_amx.h"
#include "kernels/cpu/vec/vec_kv_bf16.h"

#include "kernels/cpu/attention/attention_bf16_parts.h"

namespace heddle::kernels::cpu {
namespace {

constexpr int kTileQueries = 16;
constexpr int kTileKeys = 16;
constexpr int kStepDims = 32;
constexpr int64_t kTileFloats = 16 * 16;
static_assert(kTileQueries == kLanes && kBlockTokens == 2 * kTileKeys);

// Areas of AttendArgs::scratch.
struct TileScratch {
  int32_t dims;      // of a head, in whole steps
  int32_t* queries;  // per tile of queries [dims / 2][kTileQueries] pairs
  char* keys;        // [kBlockTokens][dims] BF16, if the cache's rows are no tile
  int32_t* values;   // [kKeyPairs][padded_dim] values of neighbouring positions
  float* scores;     // [kBlockTokens][kTileQueries]
  float* weights;    // [kTileQueries][kKeyPairs] pairs
  float* max;        // per tile of queries [kTileQueries]
  float* sums;

  explicit TileScratch(const AttendArgs& args)
      : dims((args.head_dim + kStepDims - 1) / kStepDims * kStepDims) {
    float* rest = args.scratch;
    scores = Take(rest, 2 * kTileFloats);
    weights = Take(rest, kTileFloats);
    max = Take(rest, kMaxQueries);
    sums = Take(rest, kMaxQueries);
    values = reinterpret_cast<int32_t*>(Take(rest, int64_t{args.padded_dim} * kKeyPairs));
    keys = reinterpret_cast<char*>(Take(rest, int64_t{dims} * kBlockTokens / 2));
    queries = reinterpret_cast<int32_t*>(rest);
  }

  int32_t* QueriesOf(int32_t tile) const { return queries + tile * int64_t{dims} / 2 * kLanes; }

 private:
  static float* Take(float*& rest, int64_t floats) {
    float* taken = rest;
    rest += floats;
    return taken;
  }
};
static_assert(AttendScratchFloats(kMaxLanes) >= 3 * kTileFloats + 2 * kMaxQueries +
                                                    kMaxLanes * kKeyPairs +
                                                    kStepDims * (kBlockTokens + kMaxQueries) / 2);

inline int32_t NumTiles(const AttendArgs& args) {
  return (args.num_queries + kTileQueries - 1) / kTileQueries;
}
inline int32_t RowsOfTile(const AttendArgs& args, int32_t tile) {
  const int32_t left = args.num_queries - tile * kTileQueries;
  return left < kTileQueries ? left : kTileQueries;
}

inline Vec LoadFirst(const float* p, int32_t n) {
  return n >= kLanes ? Load(p) : n > 0 ? LoadN(p, n) : Zero();
}
inline Vec AsVec(__m512i bits) { return reinterpret_cast<Vec>(bits); }

// Missing rows of a tile are zeros, and their results are not read.
inline void PackQueries(const AttendArgs& args, const TileScratch& s) {
  const Vec scale = Set(args.scale);
  for (int32_t tile = 0; tile < NumTiles(args); ++tile) {
    const int32_t count = RowsOfTile(args, tile);
    for (int32_t d = 0; d < s.dims; d += kStepDims) {
      Vec block[kLanes];
      for (int32_t r = 0; r < kTileQueries; ++r) {
        block[r] = Zero();
        if (r >= count) continue;
        const float* from = args.queries[tile * kTileQueries + r] + d;
        const int32_t left = args.head_dim - d;
        const Vec low = LoadFirst(from, left) * scale;
        const Vec high = LoadFirst(from + kLanes, left - kLanes) * scale;
        block[r] = AsVec(AsBits(_mm512_cvtne2ps_pbh(high, low)));
      }
      TransposeTo(block, reinterpret_cast<float*>(s.QueriesOf(tile) + d / 2 * kLanes), kLanes);
    }
  }
}

// The keys of a block as two tiles.
struct KeyTiles {
  const char* at[2];
  int64_t stride[2];
};

inline bool IsTile(const char* const* rows, int64_t row_bytes) {
  bool is_tile = true;
  for (int i = 1; i < kTileKeys; ++i) is_tile = is_tile && rows[i] == rows[0] + i * row_bytes;
  return is_tile;
}

// kDirect: rows of the cache may be read as BF16 in whole steps.
template <typename Element>
inline KeyTiles FindKeys(const AttendArgs& args, const BlockRows& rows, const TileScratch& s,
                         bool direct) {
  KeyTiles keys;
  const int64_t row_bytes = int64_t{args.head_dim} * Element::kBytes;
  for (int h = 0; h < 2; ++h) {
    const char* const* from = rows.keys + h * kTileKeys;
    if (direct && IsTile(from, row_bytes)) {
      keys.at[h] = from[0];
      keys.stride[h] = row_bytes;
      continue;
    }
    char* to = s.keys + h * kTileKeys * int64_t{s.dims} * 2;
    keys.at[h] = to;
    keys.stride[h] = int64_t{s.dims} * 2;
    for (int i = 0; i < kTileKeys; ++i, to += keys.stride[h]) {
      for (int32_t d = 0; d < s.dims; d += kStepDims) {
        _mm512_storeu_si512(to + d * 2, Element::LoadAt(from[i], d, args.head_dim));
      }
    }
  }
  return keys;
}

inline void Score(AmxTiles& tiles, const TileScratch& s, const KeyTiles& keys, int32_t tile) {
  const int32_t* queries = s.QueriesOf(tile);
  tiles.Clear<kC>();
  tiles.Clear<kC + 1>();
  for (int32_t d = 0; d < s.dims; d += kStepDims, queries += kTileFloats) {
    tiles.Load<kB>(queries, 64);
    tiles.Load<kA>(keys.at[0] + d * 2, keys.stride[0]);
    tiles.AddBf16<kC, kA, kB>();
    tiles.Load<kA + 1>(keys.at[1] + d * 2, keys.stride[1]);
    tiles.AddBf16<kC + 1, kA + 1, kB>();
  }
  tiles.Store<kC>(s.scores, 64);
  tiles.Store<kC + 1>(s.scores + kTileFloats, 64);
}

inline QueryRange QueriesOf(const AttendArgs& args, int32_t tile) {
  const int32_t first = tile * kTileQueries;
  return {first, first + RowsOfTile(args, tile) - 1};
}

// Sets the scores of keys that a query does not see to -infinity. Missing queries of a tile see
// what its last one sees.
inline void HideKeys(const AttendArgs& args, int32_t tile, int32_t begin, int32_t count,
                     float* scores) {
  alignas(64) int32_t lower[kTileQueries];
  alignas(64) int32_t upper[kTileQueries];
  const int32_t last = RowsOfTile(args, tile) - 1;
  for (int32_t r = 0; r < kTileQueries; ++r) {
    const int32_t q = tile * kTileQueries + (r < last ? r : last);
    const int32_t end = args.upper[q] - begin;
    lower[r] = args.lower[q] - begin;
    upper[r] = end < count ? end : count;
  }
  const __m512i from = _mm512_load_si512(lower);
  const __m512i to = _mm512_load_si512(upper);
  for (int32_t j = 0; j < kBlockTokens; ++j) {
    const __m512i key = _mm512_set1_epi32(j);
    const __mmask16 seen = _mm512_cmpge_epi32_mask(key, from) & _mm512_cmplt_epi32_mask(key, to);
    float* at = scores + j * kLanes;
    Store(at, _mm512_mask_blend_ps(seen, Set(-__builtin_inff()), Load(at)));
  }
}

inline void HideByTree(const AttendArgs& args, int32_t tile, int32_t begin, float* scores) {
  for (int32_t r = 0; r < RowsOfTile(args, tile); ++r) {
    const uint32_t seen = SeenOfTree(args, tile * kTileQueries + r, begin);
    for (int32_t j = 0; j < kBlockTokens && seen != UINT32_MAX; ++j) {
      if ((seen >> j & 1) == 0) scores[j * kLanes + r] = -__builtin_inff();
    }
  }
}

// Computes the final scores of a tile. Returns the largest of each query, also of those before.
template <bool kScaled>
inline Vec FinishScores(const AttendArgs& args, const BlockRows& rows, int32_t begin, int32_t tile,
                        float* scores, Vec largest) {
  if (kScaled || args.softcap > 0) {
    for (int j = 0; j < kBlockTokens; ++j) {
      Vec score = Load(scores + j * kLanes);
      if (kScaled) score = score * Set(rows.key_scales[j]);
      if (args.softcap > 0) score = Tanh(score / Set(args.softcap)) * Set(args.softcap);
      Store(scores + j * kLanes, score);
    }
  }
  if (!SeesAll(args, QueriesOf(args, tile), begin, rows.count))
    HideKeys(args, tile, begin, rows.count, scores);
  if (args.tree != nullptr) HideByTree(args, tile, begin, scores);
  Vec other = Load(scores);
#pragma GCC unroll 16
  for (int j = 1; j < kBlockTokens; j += 2) {
    largest = Max(largest, Load(scores + j * kLanes));
    if (j + 1 < kBlockTokens) other = Max(other, Load(scores + (j + 1) * kLanes));
  }
  return Max(largest, other);
}

// Pairs of the weights of two keys, a pair per query.
inline Vec PairsOf(Vec even, Vec odd) {
  alignas(64) static constexpr struct Indices {
    uint16_t at[32];
    constexpr Indices() : at() {
      for (int i = 0; i < 32; ++i) at[i] = static_cast<uint16_t>(i / 2 + i % 2 * 16);
    }
  } kIndices;
  const __m512i halves = AsBits(_mm512_cvtne2ps_pbh(odd, even));
  return AsVec(_mm512_permutexvar_epi16(_mm512_load_si512(kIndices.at), halves));
}

// Turns the scores of the block from `begin` on into weights exp(score - max). Returns the factor
// of earlier results.
template <bool kScaled>
inline Vec Softmax(const AttendArgs& args, const BlockRows& rows, const TileScratch& s,
                   int32_t begin, int32_t tile) {
  float* const max = s.max + tile * kTileQueries;
  float* const sums = s.sums + tile * kTileQueries;
  const Vec before = Load(max);
  const Vec largest = FinishScores<kScaled>(args, rows, begin, tile, s.scores, before);
  // If nothing has been seen yet, all scores are -infinity and their weights are 0 for any center.
  const Vec center = Select(largest == Set(-__builtin_inff()), Zero(), largest);
  const Vec decay = Select(before == largest, Set(1.0f), WeightOf(before, center));
  Vec even = Load(sums) * decay;
  Vec odd = Zero();
  Vec pairs[kKeyPairs];
#pragma GCC unroll 4
  for (int p = 0; p < kKeyPairs; ++p) {
    Vec a = WeightOf(Load(s.scores + 2 * p * kLanes), center);
    Vec b = WeightOf(Load(s.scores + (2 * p + 1) * kLanes), center);
    even = even + a;
    odd = odd + b;
    if (kScaled) {
      a = a * Set(rows.value_scales[2 * p]);
      b = b * Set(rows.value_scales[2 * p + 1]);
    }
    pairs[p] = PairsOf(a, b);
  }
  TransposeTo(pairs, s.weights, kLanes);
  Store(max, largest);
  Store(sums, even + odd);
  return decay;
}

// Multiplies earlier results by their factors, if any is not 1.
inline void Decay(const AttendArgs& args, int32_t rows, Vec decay, float* acc) {
  if (_mm512_cmp_ps_mask(decay, Set(1.0f), _CMP_NEQ_UQ) == 0) return;
  alignas(64) float factors[kLanes];
  Store(factors, decay);
  for (int32_t r = 0; r < rows; ++r, acc += args.padded_dim) {
    const Vec factor = Set(factors[r]);
    for (int32_t d = 0; d < args.padded_dim; d += kLanes) Store(acc + d, Load(acc + d) * factor);
  }
}

// acc += weights * values for kVecs vectors of the head.
template <int kVecs>
inline void AddColumns(AmxTiles& tiles, const float* values, int64_t stride, float* acc) {
  tiles.Load<kC>(acc, stride);
  tiles.Load<kB>(values, stride);
  tiles.AddBf16<kC, kA, kB>();
  tiles.Store<kC>(acc, stride);
  if constexpr (kVecs > 1) {
    tiles.Load<kC + 1>(acc + kLanes, stride);
    tiles.Load<kB + 1>(values + kLanes, stride);
    tiles.AddBf16<kC + 1, kA, kB + 1>();
    tiles.Store<kC + 1>(acc + kLanes, stride);
  }
}

inline void AddValues(AmxTiles& tiles, const AttendArgs& args, const TileScratch& s, float* acc) {
  const int64_t stride = int64_t{args.padded_dim} * 4;
  const auto* values = reinterpret_cast<const float*>(s.values);
  tiles.Load<kA>(s.weights, 64);
  int32_t d = 0;
  for (; d + 2 * kLanes <= args.padded_dim; d += 2 * kLanes) {
    AddColumns<2>(tiles, values + d, stride, acc + d);
  }
  if (d < args.padded_dim) AddColumns<1>(tiles, values + d, stride, acc + d);
}

// The work on a block once its keys and values are tiles, one tile of queries after the other: so
// the processor multiplies tiles while it computes the next exponentials.
template <bool kScaled>
inline void AttendBlock(AmxTiles& tiles, const AttendArgs& args, const TileScratch& s,
                        const BlockRows& rows, const KeyTiles& keys, int32_t begin) {
  float* acc = args.acc;
  const int64_t acc_floats = int64_t{kTileQueries} * args.padded_dim;
  for (int32_t tile = 0; tile < NumTiles(args); ++tile, acc += acc_floats) {
    if (SeesNothing(args, QueriesOf(args, tile), begin)) continue;
    Score(tiles, s, keys, tile);
    const Vec decay = Softmax<kScaled>(args, rows, s, begin, tile);
    Decay(args, RowsOfTile(args, tile), decay, acc);
    AddValues(tiles, args, s, acc);
  }
}

template <typename Element>
inline void AttendTiles(const AttendArgs& args) {
  const TileScratch s(args);
  AmxTiles tiles;
  if (args.registers->rows != kTileQueries) tiles.Configure(kTileQueries);
  args.registers->rows = kTileQueries;
  const int32_t count = NumTiles(args);
  for (int32_t i = 0; i < count * kTileQueries; i += kLanes) {
    Store(s.max + i, Set(-__builtin_inff()));
    Store(s.sums + i, Zero());
  }
  PackQueries(args, s);
  const bool whole = args.head_dim % kStepDims == 0;
  const bool direct = whole && Element::kBytes == 2;
  const int64_t row_bytes = int64_t{args.head_dim} * Element::kBytes;
  BlockQueue<Element::kScaled, /*kAhead=*/1> queue(args, row_bytes);
  for (int32_t begin = args.begin; begin < args.end; begin += kBlockTokens) {
    queue.Advance();
    const BlockRows& rows = queue.current();
    RowPrefetch keys_ahead(queue.upcoming().keys, row_bytes);
    RowPrefetch values_ahead(queue.upcoming().values, row_bytes);
    const KeyTiles keys = FindKeys<Element>(args, rows, s, direct);
    keys_ahead.Rest();
    whole ? InterleaveRows<Element, true>(args, rows, s.values)
          : InterleaveRows<Element, false>(args, rows, s.values);
    values_ahead.Rest();
    AttendBlock<Element::kScaled>(tiles, args, s, rows, keys, begin);
  }
  for (int32_t q = 0; q < args.num_queries; ++q) {
    args.max[q] = s.max[q];
    args.sum[q] = s.sums[q];
  }
}

void TileAttend(const AttendArgs& args) {
  if (args.bias != nullptr) return kAttentionAvx512Bf16.attend(args);
  switch (args.type) {
    case KvType::kBF16:
      return AttendTiles<BF16Halves>(args);
    case KvType::kInt8:
      return AttendTiles<Int8Halves>(args);
    case KvType::kF8E4M3:
      return AttendTiles<F8Halves>(args);
    case KvType::kF32:
    case KvType::kF16:
      return kAttentionAvx512Bf16.attend(args);
  }
}

void ReleaseTiles() { AmxTiles().Release(); }

}  // namespace

extern const TileAttention kTileAttentionAmx;
const TileAttention kTileAttentionAmx = {TileAttend, ReleaseTiles};

}  // namespace heddle::kernels::cpu
