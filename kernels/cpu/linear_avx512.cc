// Linear kernels for AVX-512 with VNNI. 32-row panels.
#include "kernels/cpu/vec_avx512.h"

#include "kernels/cpu/vec_math.h"

#include "kernels/cpu/linear_float.h"

#include "kernels/cpu/linear_int8.h"

namespace heddle::kernels::cpu {
namespace {

// Sums of one block for kRows rows of x and the two vectors of the panel.
template <int kRows>
struct BlockSums {
  __m512i sums[kRows][2];

  // Starts at what the unsigned weights' bias has to be corrected by: sum8 << shift.
  void Start(const int32_t* sum8, int shift) {
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      sums[m][0] = sums[m][1] = _mm512_slli_epi32(_mm512_set1_epi32(sum8[m]), shift);
    }
  }
  // Four columns: 4 bytes of each row of x at `column`.
  void Step(__m512i w0, __m512i w1, const int8_t (*x)[kBlock], int column) {
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      int32_t word;
      std::memcpy(&word, x[m] + column, 4);
      __m512i value = _mm512_set1_epi32(word);
      sums[m][0] = _mm512_dpbusd_epi32(sums[m][0], w0, value);
      sums[m][1] = _mm512_dpbusd_epi32(sums[m][1], w1, value);
    }
  }
  void AddTo(Accumulators<kRows>& total, const uint8_t* scales, const float* x_scales) const {
    Vec w0 = FromF16(reinterpret_cast<const uint16_t*>(scales));
    Vec w1 = FromF16(reinterpret_cast<const uint16_t*>(scales) + kLanes);
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      Vec x = Set(x_scales[m]);
      total.sums[m][0] = Fma(_mm512_cvtepi32_ps(sums[m][0]), w0 * x, total.sums[m][0]);
      total.sums[m][1] = Fma(_mm512_cvtepi32_ps(sums[m][1]), w1 * x, total.sums[m][1]);
    }
  }
};

// Stored weights of group g (four columns) of 16 rows, as unsigned bytes.
struct Q80Weights {
  static constexpr int kShift = 4;  // bias 128
  static __m512i LoadGroup(const uint8_t* w, int g) { return _mm512_loadu_si512(w + g * 128); }
};
struct Q40Weights {
  static constexpr int kShift = 0;  // bias 8
  static __m512i LoadGroup(const uint8_t* w, int g) {
    __m512i bytes = _mm512_loadu_si512(w + g % 4 * 128);
    if (g >= 4) bytes = _mm512_srli_epi16(bytes, 4);
    return _mm512_and_si512(bytes, _mm512_set1_epi8(0xf));
  }
};

template <typename Format, typename Weights>
struct IntPanel : BlockPanel<Format> {
  template <int kRows>
  static void Multiply(const void* panel, const void* tile, int64_t cols, float* acc) {
    const auto* block = static_cast<const uint8_t*>(panel);
    const auto* x = static_cast<const TileBlock<kRows>*>(tile);
    Accumulators<kRows> total;
    total.Start(acc);
    for (int64_t b = 0; b < cols / kBlock; ++b, block += BlockPanel<Format>::kBytes, ++x) {
      PrefetchAhead(block, BlockPanel<Format>::kBytes);
      const uint8_t* w = block + kPanelRows * 2;
      BlockSums<kRows> sums;
      sums.Start(x->sum8, Weights::kShift);
#pragma GCC unroll 8
      for (int g = 0; g < 8; ++g) {
        sums.Step(Weights::LoadGroup(w, g), Weights::LoadGroup(w + 64, g), x->x, g * 4);
      }
      sums.AddTo(total, block, x->scale);
    }
    total.Save(acc);
  }
};

using Q80Panel = IntPanel<Q80<0x80>, Q80Weights>;
using Q40Panel = IntPanel<Q40, Q40Weights>;

}  // namespace

// 12 x 2 F32 sums fill the 32 registers. The integer kernels keep two sets of sums: 8 x 2 of them
// spill a little, but make one pass over the weights for 8 rows; measured equal to 6 x 2 at 512
// rows.
extern const LinearKernels kLinearAvx512;
const LinearKernels kLinearAvx512 = {
    kPanelRows,
    {{5, {1, 2, 4, 8, 12}, PrepareFloatTile}, {4, {1, 2, 4, 8}, PrepareRoundedTile<Int8Tile>}},
    {MakeFormat<F32Panel, 1, 2, 4, 8, 12>(TileKind::kFloat),
     MakeFormat<F16Panel, 1, 2, 4, 8, 12>(TileKind::kFloat),
     MakeFormat<BF16Panel, 1, 2, 4, 8, 12>(TileKind::kFloat),
     MakeFormat<Q80Panel, 1, 2, 4, 8>(TileKind::kInt8),
     MakeFormat<Q40Panel, 1, 2, 4, 8>(TileKind::kInt8)},
    FinishPanel,
    &kBlocksAvx512,
    /*bf16_tile=*/{}};

}  // namespace heddle::kernels::cpu
