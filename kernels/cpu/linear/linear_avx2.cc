// Linear kernels for AVX2 with FMA and F16C. 16-row panels.
#include "kernels/cpu/vec/vec_avx2.h"

#include "kernels/cpu/vec/vec_math.h"

#include "kernels/cpu/linear/linear_float.h"

#include "kernels/cpu/linear/linear_int8.h"

namespace heddle::kernels::cpu {
namespace {

inline __m256i LoadBytes(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

inline __m256i Broadcast4(const int8_t* p) {
  int32_t word;
  std::memcpy(&word, p, 4);
  return _mm256_set1_epi32(word);
}

// Widens 16-bit pairs to 32 bits.
inline __m256i Widen(__m256i pairs) { return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)); }

template <int kRows>
inline void AddBlock(Accumulators<kRows>& total, const __m256i (&sums)[kRows][2],
                     const uint8_t* scales, const float* x_scales) {
  Vec w0 = FromF16(reinterpret_cast<const uint16_t*>(scales));
  Vec w1 = FromF16(reinterpret_cast<const uint16_t*>(scales) + kLanes);
#pragma GCC unroll 4
  for (int m = 0; m < kRows; ++m) {
    Vec x = Set(x_scales[m]);
    total.sums[m][0] = Fma(_mm256_cvtepi32_ps(sums[m][0]), w0 * x, total.sums[m][0]);
    total.sums[m][1] = Fma(_mm256_cvtepi32_ps(sums[m][1]), w1 * x, total.sums[m][1]);
  }
}

// Bytes are multiplied as |w| and x with the sign of w: unsigned times signed without a bias, so
// that two products (at most 2 * 128 * 127) fit into 16 bits.
struct Q80Panel : BlockPanel<Q80<0>> {
  template <int kRows>
  static void Multiply(const void* panel, const void* tile, int64_t cols, float* acc) {
    const auto* block = static_cast<const uint8_t*>(panel);
    const auto* x = static_cast<const TileBlock<kRows>*>(tile);
    Accumulators<kRows> total;
    total.Start(acc);
    for (int64_t b = 0; b < cols / kBlock; ++b, block += kBytes, ++x) {
      PrefetchAhead(block, kBytes);
      const uint8_t* w = block + kPanelRows * 2;
      __m256i sums[kRows][2] = {};
      for (int g = 0; g < 8; ++g) {
        __m256i w0 = LoadBytes(w + g * 64);
        __m256i w1 = LoadBytes(w + g * 64 + 32);
        __m256i abs0 = _mm256_abs_epi8(w0);
        __m256i abs1 = _mm256_abs_epi8(w1);
#pragma GCC unroll 4
        for (int m = 0; m < kRows; ++m) {
          __m256i value = Broadcast4(x->x[m] + g * 4);
          __m256i p0 = _mm256_maddubs_epi16(abs0, _mm256_sign_epi8(value, w0));
          __m256i p1 = _mm256_maddubs_epi16(abs1, _mm256_sign_epi8(value, w1));
          sums[m][0] = _mm256_add_epi32(sums[m][0], Widen(p0));
          sums[m][1] = _mm256_add_epi32(sums[m][1], Widen(p1));
        }
      }
      AddBlock<kRows>(total, sums, block, x->scale);
    }
    total.Save(acc);
  }
};

// Nibbles are small enough (8 groups * 2 products * 15 * 127 = 30480) for a block's sum to stay in
// 16 bits until its end.
struct Q40Panel : BlockPanel<Q40> {
  template <int kRows>
  static void Multiply(const void* panel, const void* tile, int64_t cols, float* acc) {
    const __m256i low = _mm256_set1_epi8(0xf);
    const auto* block = static_cast<const uint8_t*>(panel);
    const auto* x = static_cast<const TileBlock<kRows>*>(tile);
    Accumulators<kRows> total;
    total.Start(acc);
    for (int64_t b = 0; b < cols / kBlock; ++b, block += kBytes, ++x) {
      PrefetchAhead(block, kBytes);
      const uint8_t* w = block + kPanelRows * 2;
      __m256i sums[kRows][2] = {};
      for (int g = 0; g < 8; ++g) {  // groups 4 to 7 are the high nibbles of 0 to 3
        __m256i w0 = LoadBytes(w + g % 4 * 64);
        __m256i w1 = LoadBytes(w + g % 4 * 64 + 32);
        if (g >= 4) w0 = _mm256_srli_epi16(w0, 4);
        if (g >= 4) w1 = _mm256_srli_epi16(w1, 4);
        w0 = _mm256_and_si256(w0, low);
        w1 = _mm256_and_si256(w1, low);
#pragma GCC unroll 4
        for (int m = 0; m < kRows; ++m) {
          __m256i value = Broadcast4(x->x[m] + g * 4);
          sums[m][0] = _mm256_add_epi16(sums[m][0], _mm256_maddubs_epi16(w0, value));
          sums[m][1] = _mm256_add_epi16(sums[m][1], _mm256_maddubs_epi16(w1, value));
        }
      }
#pragma GCC unroll 4
      for (int m = 0; m < kRows; ++m) {
        __m256i bias = _mm256_set1_epi32(x->sum128[m] / 16);
        sums[m][0] = _mm256_add_epi32(Widen(sums[m][0]), bias);
        sums[m][1] = _mm256_add_epi32(Widen(sums[m][1]), bias);
      }
      AddBlock<kRows>(total, sums, block, x->scale);
    }
    total.Save(acc);
  }
};

}  // namespace

// 6 x 2 F32 sums fill the 16 registers; the integer kernels keep two sets of sums: 2 x 2 x 2.
extern const LinearKernels kLinearAvx2;
const LinearKernels kLinearAvx2 = {
    kPanelRows,
    {{4, {1, 2, 4, 6}, PrepareFloatTile}, {2, {1, 2}, PrepareRoundedTile<Int8Tile>}},
    {MakeFormat<F32Panel, 1, 2, 4, 6>(TileKind::kFloat),
     MakeFormat<F16Panel, 1, 2, 4, 6>(TileKind::kFloat),
     MakeFormat<BF16Panel, 1, 2, 4, 6>(TileKind::kFloat),
     MakeFormat<Q80Panel, 1, 2>(TileKind::kInt8), MakeFormat<Q40Panel, 1, 2>(TileKind::kInt8)},
    FinishPanel,
    &kBlocksAvx2,
    /*bf16_tile=*/{}};

}  // namespace heddle::kernels::cpu
