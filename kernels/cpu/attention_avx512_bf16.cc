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
  int32_t* queries;   // [kMaxQueries][num_pairs]

  explicit DotScratch(const AttendArgs& args)
      : Scratch(args),
        num_pairs((args.head_dim + 1) / 2),
        keys(reinterpret_cast<int32_t*>(transposed)),
        pairs(reinterpret_cast<int32_t*>(values)),
        queries(reinterpret_cast<int32_t*>(args.scratch + AttendScratchFloats(args.padded_dim) -
                                           kMaxQueries * args.padded_dim / 2)) {}
};

inline void PackQueries(const AttendArgs& args, const DotScratch& s) {
  for (int32_t q = 0; q < args.num_queries; ++q) {
    const float* from = args.queries + static_cast<int64_t>(q) * args.padded_dim;
    auto* to = reinterpret_cast<uint16_t*>(s.queries + static_cast<int64_t>(q) * s.num_pairs);
    for (int32_t d = 0; d < 2 * s.num_pairs; d += kLanes) {
      uint16_t halves[kLanes];
      ToBF16(halves, Load(from + d));
      const int32_t n = 2 * s.num_pairs - d < kLanes ? 2 * s.num_pairs - d : kLanes;
      std::memcpy(to + d, halves, static_cast<size_t>(n) * 2);
    }
  }
}

// Asks for rows line after line: at the rate that these kernels have, memory answers faster in
// order of address. One block ahead: two more would drive each other out of L1, where pages of 8 KB
// map the rows of one head to half of the sets.
template <int kCount>
inline void AskForRows(const char* const* rows, int64_t row_bytes) {
  for (int i = 0; i < kCount; ++i) {
    for (int64_t offset = 0; offset < row_bytes; offset += 64) {
      __builtin_prefetch(rows[i] + offset);
    }
  }
}

template <typename Element>
inline void TransposePairs(const AttendArgs& args, const BlockRows& rows, const BlockRows& upcoming,
                           const DotScratch& s) {
  for (int32_t j = 0; j < kBlockTokens; j += kLanes) {
    AskForRows<kLanes>(upcoming.keys + j, int64_t{args.head_dim} * Element::kBytes);
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
inline void DotScores(const DotScratch& s, int32_t q) {
  const int32_t* query = s.queries + static_cast<int64_t>(q) * s.num_pairs;
  Vec sums[kTile][2];
#pragma GCC unroll 8
  for (int t = 0; t < kTile; ++t) sums[t][0] = sums[t][1] = Zero();
  for (int32_t p = 0; p < s.num_pairs; ++p) {
    const __m512bh k0 = AsPairs(_mm512_loadu_si512(s.keys + p * kBlockTokens));
    const __m512bh k1 = AsPairs(_mm512_loadu_si512(s.keys + p * kBlockTokens + kLanes));
#pragma GCC unroll 8
    for (int t = 0; t < kTile; ++t) {
      const __m512bh x = AsPairs(_mm512_set1_epi32(query[t * s.num_pairs + p]));
      sums[t][0] = _mm512_dpbf16_ps(sums[t][0], k0, x);
      sums[t][1] = _mm512_dpbf16_ps(sums[t][1], k1, x);
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < kTile; ++t) {
    Store(s.weights + (q + t) * kBlockTokens, sums[t][0]);
    Store(s.weights + (q + t) * kBlockTokens + kLanes, sums[t][1]);
  }
}

// The weights of query q become BF16 in the first half of their row.
inline void PackWeights(const DotScratch& s, int32_t q) {
  float* row = s.weights + q * kBlockTokens;
  _mm512_storeu_si512(row, AsBits(_mm512_cvtne2ps_pbh(Load(row + kLanes), Load(row))));
}

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

// Rows past the block's end repeat its last one, with a weight of zero.
template <typename Element>
inline void InterleaveValues(const AttendArgs& args, const BlockRows& rows,
                             const BlockRows& upcoming, const DotScratch& s) {
  for (int32_t j = 0; j < kBlockTokens; j += 2) {
    AskForRows<2>(upcoming.values + j, int64_t{args.head_dim} * Element::kBytes);
    int32_t* out = s.pairs + static_cast<int64_t>(j / 2) * args.padded_dim;
    for (int32_t d = 0; d < args.padded_dim; d += 2 * kLanes) {
      const ValuePair pair(Element::LoadAt(rows.values[j], d, args.head_dim),
                           Element::LoadAt(rows.values[j + 1], d, args.head_dim));
      _mm512_storeu_si512(out + d, pair.part[0]);
      if (d + kLanes < args.padded_dim) _mm512_storeu_si512(out + d + kLanes, pair.part[1]);
    }
  }
}

// acc = acc * decay + weights * values, for kTile queries and kVecs vectors of the head.
template <int kTile, int kVecs>
inline void DotValues(const AttendArgs& args, const DotScratch& s, int32_t q, int32_t column) {
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
}

template <int kTile>
inline void DotValueRows(const AttendArgs& args, const DotScratch& s, int32_t q) {
  constexpr int kVecs = kTile == kQueryTile ? 2 : 4;  // as in ValueRows
  int32_t column = 0;
  for (; column + kVecs * kLanes <= args.padded_dim; column += kVecs * kLanes) {
    DotValues<kTile, kVecs>(args, s, q, column);
  }
  for (; column < args.padded_dim; column += kLanes) DotValues<kTile, 1>(args, s, q, column);
}

template <typename Element>
inline void DotAttendOver(const AttendArgs& args) {
  const DotScratch s(args);
  std::memset(s.sums, 0, sizeof(float) * kMaxLanes * static_cast<size_t>(args.num_queries));
  PackQueries(args, s);
  BlockQueue<Element::kScaled, /*kAhead=*/1> queue(args, int64_t{args.head_dim} * Element::kBytes);
  for (int32_t begin = args.begin; begin < args.end; begin += kBlockTokens) {
    queue.Advance();
    const BlockRows& rows = queue.current();
    TransposePairs<Element>(args, rows, queue.upcoming(), s);
    ForQueryTiles(args.num_queries,
                  [&](auto size, int32_t q) { DotScores<decltype(size)::kTile>(s, q); });
    for (int32_t q = 0; q < args.num_queries; ++q) {
      const int32_t lo = args.lower[q] > begin ? args.lower[q] - begin : 0;
      const int32_t hi = args.upper[q] - begin < rows.count ? args.upper[q] - begin : rows.count;
      SoftmaxRow<Element::kScaled>(args, rows, s, q, lo, hi);
      PackWeights(s, q);
    }
    InterleaveValues<Element>(args, rows, queue.upcoming(), s);
    ForQueryTiles(args.num_queries,
                  [&](auto size, int32_t q) { DotValueRows<decltype(size)::kTile>(args, s, q); });
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
