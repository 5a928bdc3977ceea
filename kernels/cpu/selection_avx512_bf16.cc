// Scores of positions for attention over chosen ones, of the level of vec_avx512.h with dot
// products of BF16 pairs, at twice the rate of F32: keys that BF16 holds exactly (BF16, FP8) keep
// their values, and queries are rounded to BF16, to which such keys have been rounded, too, or
// further. Two dimensions of a key are a lane. The numerics of the instruction are in
// linear_avx512_bf16.cc.
#include "kernels/cpu/vec/vec_avx512.h"

#include "kernels/cpu/vec/vec_math.h"

#include "kernels/cpu/attention/attention_kernels.h"
#include "kernels/cpu/vec/vec_kv_bf16.h"

#include "kernels/cpu/selection_kernels.h"

namespace heddle::kernels::cpu {
namespace {

static_assert(kScoredKeys == 2 * kLanes);

bool AreHalves(KvType type) { return type == KvType::kBF16 || type == KvType::kF8E4M3; }

template <typename Element>
void TransposePairsOf(const TransposeKeysArgs& args) {
  for (int32_t j = 0; j < kScoredKeys; j += kLanes) {
    for (int32_t d = 0; d < args.dim; d += 2 * kLanes) {
      Vec block[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        const auto* key = static_cast<const char*>(args.keys[j + i]);
        block[i] = _mm512_castsi512_ps(Element::LoadAt(key, d, args.dim));
      }
      TransposeTo(block, static_cast<float*>(args.out) + int64_t{d} / 2 * kScoredKeys + j,
                  kScoredKeys);
    }
  }
}

void TransposePairs(const TransposeKeysArgs& args) {
  if (args.type == KvType::kBF16) return TransposePairsOf<BF16Halves>(args);
  if (args.type == KvType::kF8E4M3) return TransposePairsOf<F8Halves>(args);
  TransposeKeys(args);
}

const void* PackPairs(const PackQueriesArgs& args) {
  if (!AreHalves(args.type)) return args.queries;
  const int32_t pairs = QueryPairs(args.dim);
  for (int32_t h = 0; h < args.n_heads; ++h) {
    const float* query = args.queries + int64_t{h} * args.dim;
    int32_t* out = args.out + int64_t{h} * pairs;
    for (int32_t d = 0; d < args.dim; d += kLanes) {
      const int32_t left = args.dim - d;
      const Vec x = left >= kLanes ? Load(query + d) : LoadN(query + d, left);
      const auto halves = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x));
      const int32_t n = left >= kLanes ? kLanes / 2 : QueryPairs(left);
      _mm256_mask_storeu_epi32(out + d / 2, static_cast<__mmask8>((1u << n) - 1), halves);
    }
  }
  return args.out;
}

// Adds the parts of kTile heads from `h` on to the scores of all keys.
template <int kTile>
HEDDLE_KERNEL_PART void ScorePairsOf(const ScoreKeysArgs& args, int32_t h, Vec (&total)[2]) {
  const int32_t pairs = QueryPairs(args.dim);
  Vec sums[kTile][2];
#pragma GCC unroll 8
  for (int t = 0; t < kTile; ++t) sums[t][0] = sums[t][1] = Zero();
  const int32_t* query = static_cast<const int32_t*>(args.queries) + int64_t{h} * pairs;
  const float* key = static_cast<const float*>(args.keys);
  for (int32_t p = 0; p < pairs; ++p, ++query, key += kScoredKeys) {
    const __m512bh first = AsPairs(_mm512_loadu_si512(key));
    const __m512bh second = AsPairs(_mm512_loadu_si512(key + kLanes));
#pragma GCC unroll 8
    for (int t = 0; t < kTile; ++t) {
      const __m512bh x = AsPairs(_mm512_set1_epi32(query[int64_t{t} * pairs]));
      sums[t][0] = _mm512_dpbf16_ps(sums[t][0], first, x);
      sums[t][1] = _mm512_dpbf16_ps(sums[t][1], second, x);
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < kTile; ++t) {
    const Vec weight = Set(args.weights[h + t]);
    for (int v = 0; v < 2; ++v) total[v] = Fma(Max(sums[t][v], Zero()), weight, total[v]);
  }
}

void ScorePairs(const ScoreKeysArgs& args) {
  if (!AreHalves(args.type)) return ScoreKeys(args);
  Vec total[2] = {Zero(), Zero()};
  ForHeadTiles(args.n_heads,
               [&](auto tile, int32_t h) { ScorePairsOf<decltype(tile)::kTile>(args, h, total); });
  Store(args.out, total[0]);
  Store(args.out + kLanes, total[1]);
}

}  // namespace

extern const SelectionKernels kSelectionAvx512Bf16;
const SelectionKernels kSelectionAvx512Bf16 = {TransposePairs, PackPairs, ScorePairs};

}  // namespace heddle::kernels::cpu
