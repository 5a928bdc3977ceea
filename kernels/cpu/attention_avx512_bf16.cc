// Attention by dot products of BF16 pairs, for caches whose elements BF16 holds exactly: BF16
// itself, int8 and FP8 E4M3. Queries and softmax weights are rounded to BF16 (nearest even), two
// products at a time are added to an F32 sum, in order of dimension and of position; maxima,
// exponentials and their sums are in F32. Twice the rate of F32 multiply-adds, and keys and values
// stay half as wide. Other caches are computed in F32, as at the avx512 level.
//
// Per block of 32 keys: keys are transposed as pairs of neighbouring dimensions, so that scores
// have keys in the lanes; values of neighbouring positions are interleaved, so that outputs have
// dimensions in the lanes.
// Numerics of the instruction: see linear_avx512_bf16.cc.
#include "kernels/cpu/vec_avx512.h"

#include "kernels/cpu/vec_math.h"

#include "kernels/cpu/attention_kernels.h"

namespace heddle::kernels::cpu {
namespace {

inline __m512bh AsPairs(__m512i v) { return reinterpret_cast<__m512bh>(v); }
inline __m512i AsBits(__m512bh v) { return reinterpret_cast<__m512i>(v); }

inline __mmask32 FirstOf32(int32_t n) { return n >= 32 ? 0xffffffffu : n <= 0 ? 0 : (1u << n) - 1; }

// Elements [i, i + 32) of a row as BF16, those past `n` as zero.
struct BF16Halves {
  static constexpr int kBytes = 2;
  static constexpr bool kScaled = false;
  static __m512i LoadAt(const char* row, int32_t i, int32_t n) {
    const char* p = row + i * kBytes;
    return n - i >= 32 ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi16(FirstOf32(n - i), p);
  }
};
inline __m256i LoadBytes32(const char* row, int32_t i, int32_t n) {
  return n - i >= 32 ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + i))
                     : _mm256_maskz_loadu_epi8(FirstOf32(n - i), row + i);
}
struct Int8Halves {
  static constexpr int kBytes = 1;
  static constexpr bool kScaled = true;
  static __m512i LoadAt(const char* row, int32_t i, int32_t n) {
    const __m256i bytes = LoadBytes32(row, i, n);
    const __m512i low = _mm512_cvtepi8_epi32(_mm256_castsi256_si128(bytes));
    const __m512i high = _mm512_cvtepi8_epi32(_mm256_extracti128_si256(bytes, 1));
    return AsBits(_mm512_cvtne2ps_pbh(_mm512_cvtepi32_ps(high), _mm512_cvtepi32_ps(low)));
  }
};

// BF16 of the magnitudes 0 .. 127 of E4M3; see F8E4M3ToF32 in kv_element.h.
struct E4M3Table {
  alignas(64) uint16_t entries[128];
  constexpr E4M3Table() : entries() {
    for (int m = 1; m < 127; ++m) {
      int exponent = m < 8 ? 1 : m >> 3;
      int mantissa = m < 8 ? m : 8 + m % 8;
      for (; mantissa < 8; --exponent) mantissa *= 2;  // multiples of 2^-9, normalised
      entries[m] = static_cast<uint16_t>(((exponent + 120) << 7) | ((mantissa - 8) << 4));
    }
    entries[127] = 0x7fc0;  // NaN
  }
};
constexpr E4M3Table kE4M3Table;

struct F8Halves {
  static constexpr int kBytes = 1;
  static constexpr bool kScaled = false;
  static __m512i LoadAt(const char* row, int32_t i, int32_t n) {
    const __m512i codes = _mm512_cvtepu8_epi16(LoadBytes32(row, i, n));
    const uint16_t* table = kE4M3Table.entries;
    const __m512i low =
        _mm512_permutex2var_epi16(_mm512_load_si512(table), codes, _mm512_load_si512(table + 32));
    const __m512i high = _mm512_permutex2var_epi16(_mm512_load_si512(table + 64), codes,
                                                   _mm512_load_si512(table + 96));
    const __mmask32 is_high = _mm512_test_epi16_mask(codes, _mm512_set1_epi16(0x40));
    const __m512i sign =
        _mm512_and_si512(_mm512_slli_epi16(codes, 8), _mm512_set1_epi16(INT16_MIN));
    return _mm512_or_si512(_mm512_mask_blend_epi16(is_high, low, high), sign);
  }
};

// Areas of AttendArgs::scratch beside those of Scratch: keys and values take half the room there.
struct DotScratch : Scratch {
  int32_t num_pairs;  // of a head's dimensions
  int32_t* keys;      // [num_pairs up to 16s][kBlockTokens] pairs
  int32_t* pairs;     // [kBlockTokens / 2][padded_dim] values of neighbouring positions
  int32_t* queries;   // per tile of queries [num_pairs][tile]

  explicit DotScratch(const AttendArgs& args)
      : Scratch(args),
        num_pairs((args.head_dim + 1) / 2),
        keys(reinterpret_cast<int32_t*>(transposed)),
        pairs(reinterpret_cast<int32_t*>(values)),
        queries(reinterpret_cast<int32_t*>(args.scratch + AttendScratchFloats(args.padded_dim) -
                                           kMaxQueries * args.padded_dim / 2)) {}
};

// Query q + t to column t of its tile.
inline void PackQuery(const AttendArgs& args, const DotScratch& s, int32_t q, int32_t t,
                      int32_t tile) {
  const float* from = args.queries + static_cast<int64_t>(q + t) * args.padded_dim;
  int32_t* to = s.queries + static_cast<int64_t>(q) * s.num_pairs + t;
  for (int32_t p = 0; p < s.num_pairs; p += kLanes / 2) {
    uint16_t halves[kLanes];
    int32_t pairs[kLanes / 2];
    ToBF16(halves, Load(from + 2 * p));
    std::memcpy(pairs, halves, sizeof(pairs));
    const int32_t n = s.num_pairs - p < kLanes / 2 ? s.num_pairs - p : kLanes / 2;
    for (int32_t i = 0; i < n; ++i) to[(p + i) * tile] = pairs[i];
  }
}

inline void PackQueries(const AttendArgs& args, const DotScratch& s) {
  ForQueryTiles(args.num_queries, [&](auto size, int32_t q) {
    constexpr int kTile = decltype(size)::kTile;
    for (int32_t t = 0; t < kTile; ++t) PackQuery(args, s, q, t, kTile);
  });
}

template <typename Element>
HEDDLE_KERNEL_PART void TransposePairs(const AttendArgs& args, const BlockRows& rows,
                                       const DotScratch& s) {
  for (int32_t j = 0; j < kBlockTokens; j += kLanes) {
    for (int32_t d = 0; d < args.head_dim; d += 2 * kLanes) {
      Vec block[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        block[i] = _mm512_castsi512_ps(Element::LoadAt(rows.keys[j + i], d, args.head_dim));
      }
      TransposeTo(block, reinterpret_cast<float*>(s.keys) + d / 2 * kBlockTokens + j, kBlockTokens);
    }
  }
}

template <int kTile>
HEDDLE_KERNEL_PART void DotScores(const DotScratch& s, int32_t q, RowPrefetch& prefetch) {
  RowPrefetch ahead = prefetch;  // in registers
  const int32_t* query = s.queries + static_cast<int64_t>(q) * s.num_pairs;
  Vec sums[kTile][2];
#pragma GCC unroll 8
  for (int t = 0; t < kTile; ++t) sums[t][0] = sums[t][1] = Zero();
  for (int32_t p = 0; p < s.num_pairs; ++p) {
    ahead.Next();
    const __m512bh k0 = AsPairs(_mm512_loadu_si512(s.keys + p * kBlockTokens));
    const __m512bh k1 = AsPairs(_mm512_loadu_si512(s.keys + p * kBlockTokens + kLanes));
#pragma GCC unroll 8
    for (int t = 0; t < kTile; ++t) {
      const __m512bh x = AsPairs(_mm512_set1_epi32(query[p * kTile + t]));
      sums[t][0] = _mm512_dpbf16_ps(sums[t][0], k0, x);
      sums[t][1] = _mm512_dpbf16_ps(sums[t][1], k1, x);
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < kTile; ++t) {
    Store(s.weights + (q + t) * kBlockTokens, sums[t][0]);
    Store(s.weights + (q + t) * kBlockTokens + kLanes, sums[t][1]);
  }
  prefetch = ahead;
}

// Weights become BF16, in the first half of their row.
struct PairWeights {
  static void Put(float* row, const Vec (&weights)[kBlockVecs]) {
    _mm512_storeu_si512(row, AsBits(_mm512_cvtne2ps_pbh(weights[1], weights[0])));
  }
};

// Dimensions [d, d + 32) of two rows a and b of values, interleaved: [0] the first 16 of them.
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

// Rows past the block's end repeat its last one, with a weight of zero. kWhole: heads are whole
// vectors of 32 dimensions.
template <typename Element, bool kWhole>
HEDDLE_KERNEL_PART void InterleaveRows(const AttendArgs& args, const BlockRows& rows,
                                       const DotScratch& s) {
  const int32_t load_dim = kWhole ? INT32_MAX : args.head_dim;
  for (int32_t j = 0; j < kBlockTokens; j += 2) {
    int32_t* out = s.pairs + static_cast<int64_t>(j / 2) * args.padded_dim;
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

template <typename Element>
inline void InterleaveValues(const AttendArgs& args, const BlockRows& rows, const DotScratch& s) {
  if (args.head_dim % (2 * kLanes) == 0) {
    InterleaveRows<Element, true>(args, rows, s);
  } else {
    InterleaveRows<Element, false>(args, rows, s);
  }
}

// acc = acc * decay + weights * values, for kTile queries and kVecs vectors of the head.
template <int kTile, int kVecs>
HEDDLE_KERNEL_PART void DotValues(const AttendArgs& args, const DotScratch& s, int32_t q,
                                  int32_t column, RowPrefetch& prefetch) {
  RowPrefetch ahead = prefetch;  // in registers
  float* acc = args.acc + static_cast<int64_t>(q) * args.padded_dim + column;
  Vec sums[kTile][kVecs];
#pragma GCC unroll 8
  for (int t = 0; t < kTile; ++t) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) {
      sums[t][v] = Load(acc + t * args.padded_dim + v * kLanes) * Set(s.decay[q + t]);
    }
  }
  const auto* weight = reinterpret_cast<const int32_t*>(s.weights + q * kBlockTokens);
  const int32_t* from = s.pairs + column;
  for (int32_t j = 0; j < kBlockTokens / 2; ++j, from += args.padded_dim) {
    ahead.Next();
    if (kVecs > 2) ahead.Next();
    __m512bh value[kVecs];
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) value[v] = AsPairs(_mm512_loadu_si512(from + v * kLanes));
#pragma GCC unroll 8
    for (int t = 0; t < kTile; ++t) {
      const __m512bh w = AsPairs(_mm512_set1_epi32(weight[t * kBlockTokens + j]));
#pragma GCC unroll 4
      for (int v = 0; v < kVecs; ++v) sums[t][v] = _mm512_dpbf16_ps(sums[t][v], value[v], w);
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < kTile; ++t) {
#pragma GCC unroll 4
    for (int v = 0; v < kVecs; ++v) Store(acc + t * args.padded_dim + v * kLanes, sums[t][v]);
  }
  prefetch = ahead;
}

template <int kTile>
inline void DotValueRows(const AttendArgs& args, const DotScratch& s, int32_t q,
                         RowPrefetch& prefetch) {
  constexpr int kVecs = kTile == kQueryTile ? 2 : 4;  // as in ValueRows
  int32_t column = 0;
  for (; column + kVecs * kLanes <= args.padded_dim; column += kVecs * kLanes) {
    DotValues<kTile, kVecs>(args, s, q, column, prefetch);
  }
  for (; column < args.padded_dim; column += kLanes) {
    DotValues<kTile, 1>(args, s, q, column, prefetch);
  }
}

template <typename Element>
inline void DotAttendOver(const AttendArgs& args) {
  const DotScratch s(args);
  std::memset(s.sums, 0, sizeof(float) * kMaxLanes * static_cast<size_t>(args.num_queries));
  PackQueries(args, s);
  const int64_t row_bytes = int64_t{args.head_dim} * Element::kBytes;
  BlockQueue<Element::kScaled, /*kAhead=*/1> queue(args, row_bytes);
  for (int32_t begin = args.begin; begin < args.end; begin += kBlockTokens) {
    queue.Advance();
    const BlockRows& rows = queue.current();
    RowPrefetch keys_ahead(queue.upcoming().keys, row_bytes);
    RowPrefetch values_ahead(queue.upcoming().values, row_bytes);
    TransposePairs<Element>(args, rows, s);
    ForQueryTiles(args.num_queries, [&](auto size, int32_t q) {
      constexpr int kTile = decltype(size)::kTile;
      DotScores<kTile>(s, q, keys_ahead);
      SoftmaxTile<Element::kScaled, PairWeights, kTile>(args, rows, s, begin, q);
    });
    keys_ahead.Rest();
    InterleaveValues<Element>(args, rows, s);
    ForQueryTiles(args.num_queries, [&](auto size, int32_t q) {
      DotValueRows<decltype(size)::kTile>(args, s, q, values_ahead);
    });
    values_ahead.Rest();
  }
  for (int32_t q = 0; q < args.num_queries; ++q) {
    args.sum[q] = ReduceAdd(Load(s.sums + q * kMaxLanes));
  }
}

void DotAttend(const AttendArgs& args) {
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
