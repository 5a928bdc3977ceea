// Attention by dot products of BF16 pairs, for caches whose elements BF16 holds exactly: BF16
// itself, int8 and FP8 E4M3. Queries and softmax weights are rounded to BF16 (nearest even), two
// products at a time are added to an F32 sum, in an order that depends on head_dim alone; maxima,
// exponentials and their sums are in F32. This has twice the rate of F32 multiply-adds, and keys
// and values stay half as wide. Other caches are computed in F32, as at the avx512 level.
//
// Queries are taken in tiles of eight, two lanes each: lanes 2 r and 2 r + 1 of a sum hold the
// contributions of two neighbouring pairs of dimensions to query r and one key, whose four elements
// are broadcast straight from the cache. So keys need no transposition, eight queries of a group
// read them once, and maxima run down the vectors instead of across them. The sums of keys j and j
// + 1 then fold into one vector of scores, lane 2 r + i for key j + i; their weights as BF16 are
// the pairs that the product with the values takes. That product has dimensions in the lanes, with
// the values of neighbouring positions interleaved.
// The numerics of the instruction are in linear_avx512_bf16.cc.
#include "kernels/cpu/vec/vec_avx512.h"

#include <type_traits>

#include "kernels/cpu/vec/vec_math.h"

#include "kernels/cpu/attention/attention_kernels.h"
#include "kernels/cpu/vec/vec_kv_bf16.h"

#include "kernels/cpu/attention/attention_bf16_tiles.h"

namespace heddle::kernels::cpu {
namespace {

// Keys whose sums are computed at once, each from even and odd quads: 16 sums hide the latency of
// the instruction, and 8 addresses leave registers for the rest.
constexpr int kKeysAtOnce = 8;

// Dimensions [d, d + 16) of query q, scaled, as four quads.
inline __m256i QuadsOf(const AttendArgs& args, int32_t q, int32_t d) {
  const float* from = args.queries[q] + d;
  const int32_t left = args.head_dim - d;
  const Vec x = left >= kLanes ? Load(from) : LoadN(from, left);
  return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x * Set(args.scale)));
}

// Rearranges the quads of the eight rows at [0, 4) .. [28, 32) from row by row to quad by quad.
inline void TransposeQuads(const __m256i (&rows)[kTileRows], int32_t* out) {
  const __m512i first_half = _mm512_setr_epi64(0, 4, 8, 12, 1, 5, 9, 13);
  const __m512i second_half = _mm512_setr_epi64(2, 6, 10, 14, 3, 7, 11, 15);
  __m512i quads[2][2];  // rows 0 and 1, rows 2 and 3
  for (int h = 0; h < 2; ++h) {
    const __m256i* r = rows + 4 * h;
    const __m512i a = _mm512_inserti64x4(_mm512_castsi256_si512(r[0]), r[1], 1);
    const __m512i b = _mm512_inserti64x4(_mm512_castsi256_si512(r[2]), r[3], 1);
    quads[h][0] = _mm512_permutex2var_epi64(a, first_half, b);
    quads[h][1] = _mm512_permutex2var_epi64(a, second_half, b);
  }
  for (int i = 0; i < 2; ++i) {
    _mm512_storeu_si512(out + 2 * i * kLanes, _mm512_shuffle_i64x2(quads[0][i], quads[1][i], 0x44));
    _mm512_storeu_si512(out + (2 * i + 1) * kLanes,
                        _mm512_shuffle_i64x2(quads[0][i], quads[1][i], 0xee));
  }
}

// Missing rows of a tile are zeros, and their results are not read.
HEDDLE_KERNEL_PART void PackQueries(const AttendArgs& args, const DotScratch& s) {
  for (int32_t tile = 0; tile < NumTiles(args); ++tile) {
    const int32_t count = RowsOfTile(args, tile);
    for (int32_t d = 0; d < args.padded_dim; d += kLanes) {
      __m256i rows[kTileRows];
      for (int32_t r = 0; r < kTileRows; ++r) {
        rows[r] = r < count ? QuadsOf(args, tile * kTileRows + r, d) : _mm256_setzero_si256();
      }
      TransposeQuads(rows, s.QueriesOf(tile) + d / 4 * kLanes);
    }
  }
}

// The keys of a block as rows of BF16 that may be read in whole steps of eight dimensions.
template <typename Element>
HEDDLE_KERNEL_PART void ConvertKeys(const AttendArgs& args, const BlockRows& rows,
                                    const DotScratch& s, const char* (&out)[kBlockTokens]) {
  const int64_t row_bytes = int64_t{args.padded_dim} * 2;
  for (int32_t j = 0; j < kBlockTokens; ++j) {
    char* to = s.keys + j * row_bytes;
    out[j] = to;
    for (int32_t d = 0; d < args.padded_dim; d += 2 * kLanes) {
      const __m512i halves = Element::LoadAt(rows.keys[j], d, args.head_dim);
      if (d + kLanes < args.padded_dim) {
        _mm512_storeu_si512(to + d * 2, halves);
      } else {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + d * 2), _mm512_castsi512_si256(halves));
      }
    }
  }
}

// The sums of one tile of queries with kKeysAtOnce keys.
struct KeySums {
  Vec even[kKeysAtOnce];
  Vec odd[kKeysAtOnce];

  void Add(const int32_t* queries, int32_t quad, const char* const (&keys)[kKeysAtOnce]) {
    const __m512bh q0 = AsPairs(_mm512_loadu_si512(queries + quad * kTileRows * 2));
    const __m512bh q1 = AsPairs(_mm512_loadu_si512(queries + (quad + 1) * kTileRows * 2));
#pragma GCC unroll 8
    for (int k = 0; k < kKeysAtOnce; ++k) {
      even[k] = _mm512_dpbf16_ps(even[k], q0, QuadAt(keys[k] + quad * 8));
      odd[k] = _mm512_dpbf16_ps(odd[k], q1, QuadAt(keys[k] + quad * 8 + 8));
    }
  }
  static __m512bh QuadAt(const char* p) {
    int64_t quad;
    std::memcpy(&quad, p, sizeof(quad));
    return AsPairs(_mm512_set1_epi64(quad));
  }
  // The scores of keys k (even lanes) and k + 1 (odd lanes).
  Vec Fold(int k) const {
    const Vec a = even[k] + odd[k];
    const Vec b = even[k + 1] + odd[k + 1];
    return _mm512_mask_moveldup_ps(a, 0xaaaa, b) + _mm512_mask_movehdup_ps(b, 0x5555, a);
  }
};

HEDDLE_KERNEL_PART void DotScores(const DotScratch& s, const char* const (&keys)[kBlockTokens],
                                  int32_t tile, RowPrefetch& prefetch) {
  RowPrefetch ahead = prefetch;  // in registers
  const int32_t* queries = s.QueriesOf(tile);
  float* scores = s.ScoresOf(tile);
  for (int j = 0; j < kBlockTokens; j += kKeysAtOnce, scores += kKeysAtOnce * kTileRows) {
    const char* of_sums[kKeysAtOnce];
    KeySums sums;
#pragma GCC unroll 8
    for (int k = 0; k < kKeysAtOnce; ++k) {
      of_sums[k] = keys[j + k];
      sums.even[k] = sums.odd[k] = Zero();
    }
    for (int32_t quad = 0; quad < s.quads; quad += 2) {
      ahead.Next();
      sums.Add(queries, quad, of_sums);
    }
#pragma GCC unroll 4
    for (int k = 0; k < kKeysAtOnce; k += 2) Store(scores + k * kTileRows, sums.Fold(k));
  }
  prefetch = ahead;
}

// The values of positions 2 j and 2 j + 1, from InterleaveRows or straight from the cache.
struct InterleavedValues {
  const int32_t* values;
  int64_t stride;

  template <int kVecs>
  void LoadAt(int32_t j, int32_t column, __m512bh (&value)[kVecs]) const {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      value[v] = AsPairs(_mm512_loadu_si512(values + j * stride + column + v * kLanes));
    }
  }
};
template <typename Element>
struct RowValues {
  const BlockRows& rows;

  template <int kVecs>
  void LoadAt(int32_t j, int32_t column, __m512bh (&value)[kVecs]) const {
    static_assert(kVecs % 2 == 0);
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; v += 2) {
      const int32_t d = column + v * kLanes;
      const ValuePair pair(Element::LoadAt(rows.values[2 * j], d, INT32_MAX),
                           Element::LoadAt(rows.values[2 * j + 1], d, INT32_MAX));
      value[v] = AsPairs(pair.part[0]);
      value[v + 1] = AsPairs(pair.part[1]);
    }
  }
};

// acc = acc * decay + weights * values, for the first kRows queries of a tile and kVecs vectors of
// the head.
template <int kRows, int kVecs, typename Values>
HEDDLE_KERNEL_PART void DotValues(const AttendArgs& args, const DotScratch& s, const Values& values,
                                  int32_t tile, int32_t column, RowPrefetch& prefetch) {
  RowPrefetch ahead = prefetch;  // in registers
  float* acc = args.acc + int64_t{tile} * kTileRows * args.padded_dim + column;
  const float* decay = s.decay + DotScratch::StateOf(tile);
  Vec sums[kRows][kVecs];
#pragma GCC unroll 8
  for (int t = 0; t < kRows; ++t) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      sums[t][v] = Load(acc + t * args.padded_dim + v * kLanes) * Set(decay[2 * t]);
    }
  }
  const auto* weight = reinterpret_cast<const int32_t*>(s.ScoresOf(tile));
  for (int32_t j = 0; j < kKeyPairs; ++j, weight += kTileRows) {
    ahead.Next();
    if (kVecs > 2) ahead.Next();
    __m512bh value[kVecs];
    values.template LoadAt<kVecs>(j, column, value);
#pragma GCC unroll 8
    for (int t = 0; t < kRows; ++t) {
      const __m512bh w = AsPairs(_mm512_set1_epi32(weight[t]));
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) sums[t][v] = _mm512_dpbf16_ps(sums[t][v], value[v], w);
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < kRows; ++t) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) Store(acc + t * args.padded_dim + v * kLanes, sums[t][v]);
  }
  prefetch = ahead;
}

// Takes 32 dimensions at a time; few queries take 64, for as many independent sums.
template <int kRows, typename Values>
inline void DotValueColumns(const AttendArgs& args, const DotScratch& s, const Values& values,
                            int32_t tile, RowPrefetch& prefetch) {
  constexpr int kVecs = kRows == kTileRows ? 2 : 4;
  int32_t column = 0;
  for (; column + kVecs * kLanes <= args.padded_dim; column += kVecs * kLanes) {
    DotValues<kRows, kVecs>(args, s, values, tile, column, prefetch);
  }
  for (; column + 2 * kLanes <= args.padded_dim; column += 2 * kLanes) {
    DotValues<kRows, 2>(args, s, values, tile, column, prefetch);
  }
  if constexpr (std::is_same_v<Values, InterleavedValues>) {  // the others are whole vectors of 32
    if (column < args.padded_dim) DotValues<kRows, 1>(args, s, values, tile, column, prefetch);
  }
}

template <typename Values>
inline void DotValueTile(const AttendArgs& args, const DotScratch& s, const Values& values,
                         int32_t tile, RowPrefetch& prefetch) {
  const int32_t rows = RowsOfTile(args, tile);
  if (rows > 4) {
    DotValueColumns<8>(args, s, values, tile, prefetch);
  } else if (rows > 2) {
    DotValueColumns<4>(args, s, values, tile, prefetch);
  } else if (rows > 1) {
    DotValueColumns<2>(args, s, values, tile, prefetch);
  } else {
    DotValueColumns<1>(args, s, values, tile, prefetch);
  }
}

// The work on a block once its keys can be read.
template <typename Element>
inline void AttendBlock(const AttendArgs& args, const DotScratch& s, const BlockRows& rows,
                        const char* const (&keys)[kBlockTokens], int32_t begin,
                        RowPrefetch& keys_ahead, RowPrefetch& values_ahead) {
  const int32_t tiles = NumTiles(args);
  for (int32_t tile = 0; tile < tiles; ++tile) {
    if (SeesNothing(args, QueriesOf(args, tile), begin)) continue;
    DotScores(s, keys, tile, keys_ahead);
    SoftmaxRows<Element::kScaled>(args, rows, s, begin, tile);
  }
  keys_ahead.Rest();
  const bool whole = args.head_dim % (2 * kLanes) == 0;
  if (tiles == 1 && whole) {  // no other tile would read the interleaved values
    DotValueTile(args, s, RowValues<Element>{rows}, 0, values_ahead);
  } else {
    whole ? InterleaveRows<Element, true>(args, rows, s.values)
          : InterleaveRows<Element, false>(args, rows, s.values);
    const InterleavedValues values{s.values, args.padded_dim};
    for (int32_t tile = 0; tile < tiles; ++tile) {
      if (!SeesNothing(args, QueriesOf(args, tile), begin))
        DotValueTile(args, s, values, tile, values_ahead);
    }
  }
  values_ahead.Rest();
}

template <typename Element>
inline void DotAttendOver(const AttendArgs& args) {
  const DotScratch s(args);
  const int32_t states = NumTiles(args) * kTileRows * 2;
  for (int32_t i = 0; i < states; i += kLanes) {
    Store(s.max + i, Set(-__builtin_inff()));
    Store(s.sums + i, Zero());
  }
  PackQueries(args, s);
  const bool direct = std::is_same_v<Element, BF16Halves> && args.head_dim % 8 == 0;
  const int64_t row_bytes = int64_t{args.head_dim} * Element::kBytes;
  BlockQueue<Element::kScaled, /*kAhead=*/1> queue(args, row_bytes);
  for (int32_t begin = args.begin; begin < args.end; begin += kBlockTokens) {
    queue.Advance();
    const BlockRows& rows = queue.current();
    RowPrefetch keys_ahead(queue.upcoming().keys, row_bytes);
    RowPrefetch values_ahead(queue.upcoming().values, row_bytes);
    if (direct) {
      AttendBlock<Element>(args, s, rows, rows.keys, begin, keys_ahead, values_ahead);
    } else {
      const char* keys[kBlockTokens];
      ConvertKeys<Element>(args, rows, s, keys);
      AttendBlock<Element>(args, s, rows, keys, begin, keys_ahead, values_ahead);
    }
  }
  for (int32_t q = 0; q < args.num_queries; ++q) {
    args.max[q] = s.max[2 * q];
    args.sum[q] = s.sums[2 * q] + s.sums[2 * q + 1];
  }
}

void DotAttend(const AttendArgs& args) {
  if (args.bias != nullptr) return Attend(args);  // the only one that has biases
  switch (args.type) {
    case KvType::kBF16:
      return DotAttendOver<BF16Halves>(args);
    case KvType::kInt8:
      return DotAttendOver<Int8Halves>(args);
    case KvType::kF8E4M3:
      return DotAttendOver<F8Halves>(args);
    case KvType::kF32:
    case KvType::kF16:
      return Attend(args);
  }
}

}  // namespace

extern const AttentionKernels kAttentionAvx512Bf16;
const AttentionKernels kAttentionAvx512Bf16 = {DotAttend, MergeParts, FinishRow};

}  // namespace heddle::kernels::cpu
