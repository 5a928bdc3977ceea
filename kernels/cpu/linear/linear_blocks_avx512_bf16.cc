// Blocked formats of float values by dot products of BF16 pairs. Codes of E4M3 are BF16 numbers;
// those of NF4 and FP4 are rounded to it (2^-9). Activations are rounded to BF16 once per tile. For
// each block, in order of k: t = 0; an instruction adds two products to the F32 t; then the result
// += t
// * scale of w. The numerics of the instruction are in linear_avx512_bf16.cc.
#include "kernels/cpu/vec/vec_avx512.h"

#include <type_traits>
#include <utility>

#include "kernels/cpu/vec/vec_math.h"

#include "kernels/cpu/linear/linear_float.h"

#include "kernels/cpu/linear/linear_int8.h"

#include "kernels/cpu/linear/dot_avx512.h"

#include "kernels/cpu/linear/linear_blocks.h"

namespace heddle::kernels::cpu {
namespace {

inline __m512bh AsPairs(__m512i v) { return reinterpret_cast<__m512bh>(v); }

// Decodes E4M3 to BF16 in 16 bits each: the exponent's bias is 7 there and 127 here. Below 2^-6 the
// eight multiples of 2^-9 come from a table.
class E4m3Decoder {
 public:
  E4m3Decoder() {
    float multiples[kLanes] = {};
    for (int i = 0; i < 8; ++i) multiples[i] = static_cast<float>(i) * 0x1p-9f;
    uint16_t table[32] = {};
    ToBF16(table, Load(multiples));
    small_ = _mm512_loadu_si512(table);
  }
  __m512i operator()(__m512i codes) const {
    const __m512i magnitude = _mm512_and_si512(codes, _mm512_set1_epi16(0x7f));
    const __m512i sign = _mm512_slli_epi16(_mm512_srli_epi16(codes, 7), 15);
    const __m512i bits =
        _mm512_add_epi16(_mm512_slli_epi16(magnitude, 4), _mm512_set1_epi16(120 << 7));
    const __mmask32 is_small = _mm512_cmplt_epu16_mask(magnitude, _mm512_set1_epi16(8));
    return _mm512_or_si512(sign, _mm512_mask_permutexvar_epi16(bits, is_small, magnitude, small_));
  }

 private:
  __m512i small_;
};

// Decodes 4-bit codes.
template <BlockTraits kTraits>
class TableDecoder {
 public:
  TableDecoder() {
    uint16_t table[32] = {};
    ToBF16(table, Load(TableOf<kTraits>()));
    table_ = _mm512_loadu_si512(table);
  }
  __m512i operator()(__m512i codes) const { return _mm512_permutexvar_epi16(codes, table_); }

 private:
  __m512i table_;
};

template <BlockTraits kTraits>
using DecoderOf =
    std::conditional_t<kTraits.values == CodeValues::kE4m3, E4m3Decoder, TableDecoder<kTraits>>;

// One block of a panel in memory, as pairs of columns.
template <BlockTraits kTraits>
class PackedPairs {
 public:
  using Shape = PanelShape<kTraits>;
  static constexpr int kBytes = PackedBlock<kTraits>::kBytes;
  static constexpr int kAheadLines = PackedBlock<kTraits>::kAheadLines;

  PackedPairs(const uint8_t* block, const DecoderOf<kTraits>& decoder)
      : block_(block), decoder_(decoder) {}

  Vec Scale(int v) const { return PackedBlock<kTraits>(block_).Scale(0, 0, v); }

  // Columns 2 kPair and 2 kPair + 1 of a part, for the rows of vector v.
  template <int kPair>
  __m512i Pair(int part, int v) const {
    constexpr int kWords = kTraits.code_bits;
    constexpr int kGroup = kPair / 2;
    const uint8_t* words = Part(part) + (kGroup % kWords * kPanelRows + v * kLanes) * 4;
    __m512i codes = _mm512_shuffle_epi8(_mm512_loadu_si512(words), BytesOf<kPair % 2>());
    if constexpr (kWords == 4 && kGroup < 4) codes = _mm512_and_si512(codes, _mm512_set1_epi16(15));
    if constexpr (kWords == 4 && kGroup >= 4) codes = _mm512_srli_epi16(codes, 4);
    return decoder_(codes);
  }

 private:
  // Moves bytes 2 kHalf and 2 kHalf + 1 of each lane to its 16-bit halves.
  template <int kHalf>
  static __m512i BytesOf() {
    constexpr int32_t kFirst = static_cast<int32_t>(0x80018000 + kHalf * 0x00020002);
    return _mm512_set4_epi32(kFirst + 0x000c000c, kFirst + 0x00080008, kFirst + 0x00040004, kFirst);
  }
  const uint8_t* Part(int part) const {
    return block_ + Shape::kHeaderBytes + part * Shape::kPartBytes;
  }

  const uint8_t* block_;
  const DecoderOf<kTraits>& decoder_;
};

// The same decoded: F32 scales [kPanelRows], then pairs [columns / 2][kPanelRows].
template <BlockTraits kTraits>
class ExpandedPairs {
 public:
  static constexpr int kBytes = kIntRowBytes * (1 + kTraits.columns / 2);
  static constexpr int kAheadLines = 0;

  ExpandedPairs(const uint8_t* block, const DecoderOf<kTraits>&) : block_(block) {}

  Vec Scale(int v) const { return LoadFloats(block_ + v * kLanes * 4); }
  template <int kPair>
  __m512i Pair(int part, int v) const {
    return _mm512_loadu_si512(block_ + OffsetOf(part, kPair, v));
  }

  static void Write(const PackedPairs<kTraits>& from, uint8_t* out) {
    for (int v = 0; v < 2; ++v) {
      Store(reinterpret_cast<float*>(out) + v * kLanes, from.Scale(v));
      for (int part = 0; part < kTraits.columns / kBlock; ++part) {
        [&]<int... kPairs>(std::integer_sequence<int, kPairs...>) {
          (_mm512_storeu_si512(out + OffsetOf(part, kPairs, v),
                               from.template Pair<kPairs>(part, v)),
           ...);
        }
        (std::make_integer_sequence<int, kBlock / 2>());
      }
    }
  }

 private:
  static constexpr int OffsetOf(int part, int pair, int v) {
    return kIntRowBytes * (1 + part * kBlock / 2 + pair) + v * kLanes * 4;
  }

  const uint8_t* block_;
};

template <BlockTraits kTraits>
struct PairPanel {
  using Decoder = DecoderOf<kTraits>;

  template <int kRows, int kPair, typename Block>
  [[gnu::always_inline]] static inline void Steps(const Block& w, int part, const int32_t* x,
                                                  Accumulators<kRows>& total) {
    const __m512bh w0 = AsPairs(w.template Pair<kPair>(part, 0));
    const __m512bh w1 = AsPairs(w.template Pair<kPair>(part, 1));
#pragma GCC unroll 12
    for (int m = 0; m < kRows; ++m) {
      const __m512bh pair = AsPairs(_mm512_set1_epi32(x[m]));
      total.sums[m][0] = _mm512_dpbf16_ps(total.sums[m][0], w0, pair);
      total.sums[m][1] = _mm512_dpbf16_ps(total.sums[m][1], w1, pair);
    }
    if constexpr (kPair + 1 < kBlock / 2) Steps<kRows, kPair + 1>(w, part, x + kRows, total);
  }

  // Adds the products of one block to acc.
  template <int kRows, typename Block>
  static void MultiplyBlock(const Block& w, const int32_t* x, float* acc,
                            Prefetches<Block::kAheadLines>& ahead) {
    Accumulators<kRows> total;
    total.Clear();
    for (int part = 0; part < kTraits.columns / kBlock; ++part, x += kBlock / 2 * kRows) {
      ahead.Next();
      Steps<kRows, 0>(w, part, x, total);
    }
    total.AddTimes(w.Scale(0), w.Scale(1), acc);
  }

  template <int kRows, typename Block>
  static void Multiply(const void* weights, const void* tile, int64_t cols, float* acc,
                       WeightsAhead weights_ahead) {
    const Decoder decoder;
    const auto* w = static_cast<const uint8_t*>(weights);
    const auto* x = static_cast<const int32_t*>(tile);
    Prefetches<Block::kAheadLines> ahead(weights_ahead, cols / kBlock);
    for (int64_t begin = 0; begin < cols; begin += kTraits.columns, w += Block::kBytes) {
      MultiplyBlock<kRows>(Block(w, decoder), x, acc, ahead);
      x += kTraits.columns / 2 * kRows;
    }
  }

  static int64_t ExpandedBytes(int64_t cols) {
    return cols / kTraits.columns * ExpandedPairs<kTraits>::kBytes;
  }
  static void Expand(const void* panel, int64_t cols, void* out) {
    const Decoder decoder;
    const auto* from = static_cast<const uint8_t*>(panel);
    auto* to = static_cast<uint8_t*>(out);
    for (int64_t begin = 0; begin < cols; begin += kTraits.columns) {
      ExpandedPairs<kTraits>::Write(PackedPairs<kTraits>(from, decoder), to);
      from += PackedPairs<kTraits>::kBytes;
      to += ExpandedPairs<kTraits>::kBytes;
    }
  }
};

template <BlockFormat kFormat, int... kSizes>
constexpr FormatKernels MakePairs() {
  constexpr BlockTraits kTraits = kTraitsOf<kFormat>;
  return MakeExpandable<BlockLayout<kFormat>, PairPanel<kTraits>, PackedPairs<kTraits>,
                        ExpandedPairs<kTraits>, kSizes...>(TileKind::kBf16, /*expand_tiles=*/2);
}

}  // namespace

// The sizes are those of kBf16DotAvx512's tiles.
extern const Bf16BlockKernels kBlocksAvx512Bf16;
const Bf16BlockKernels kBlocksAvx512Bf16 = {MakePairs<BlockFormat::kF8G32, 1, 2, 4, 8, 12>(),
                                            MakePairs<BlockFormat::kF8G128, 1, 2, 4, 8, 12>(),
                                            MakePairs<BlockFormat::kNF4, 1, 2, 4, 8, 12>(),
                                            MakePairs<BlockFormat::kFP4, 1, 2, 4, 8, 12>()};

}  // namespace heddle::kernels::cpu
