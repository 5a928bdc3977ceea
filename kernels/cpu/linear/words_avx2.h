// Blocks of a panel as int16_avx2.h multiplies with them: signed bytes widened to 16 bits. A panel
// in memory is a row of PackedWords or Q80Words; ExpandedWords hold the same widened, while many
// rows of x pass.
// REQUIRES: codes_avx2.h included before, on AVX2.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

namespace heddle::kernels::cpu {
namespace {

// Bytes of a panel in memory, widened to pairs of columns 4 g + kOdd and 4 g + 2 + kOdd.
template <BlockTraits kTraits>
class PackedWords : public PackedBlock<kTraits> {
 public:
  using Base = PackedBlock<kTraits>;
  using Base::Base;
  static constexpr int kBytes = Base::kBytes;
  static constexpr bool kHasZero = kTraits.has_zero;

  template <int kGroup>
  void Words(int part, ByteVec table, int v, __m256i (&words)[2]) const {
    const ByteVec bytes = Base::template Codes<kGroup>(part, table, v);
    words[0] = _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8);
    words[1] = _mm256_srai_epi16(bytes, 8);
  }
};

// Q8_0's panels: F16 scales [kPanelRows], then int8 [8][2: kOdd][kPanelRows][2] for the pairs of
// columns 4 g + kOdd and 4 g + 2 + kOdd, so that one instruction loads and widens a vector.
struct Q80Layout {
  static constexpr int64_t kSourceBytes = 34;
  static constexpr int64_t kCodesAt = kPanelRows * 2;
  static constexpr int64_t kBytes = kCodesAt + kBlock * kPanelRows;

  static int64_t Bytes(int64_t cols) { return RoundUp64(cols / kBlock * kBytes); }
  // Where column c of a row is within a block.
  static int64_t PlaceOf(int64_t c, int32_t row) {
    return kCodesAt + ((c / 4 * 2 + c % 2) * kPanelRows + row) * 2 + c % 4 / 2;
  }

  static void Pack(const void* source, int64_t row_bytes, int32_t rows, int64_t cols, void* panel) {
    std::memset(panel, 0, static_cast<size_t>(Bytes(cols)));
    for (int32_t r = 0; r < rows; ++r) {
      const auto* in = static_cast<const uint8_t*>(source) + r * row_bytes;
      auto* out = static_cast<uint8_t*>(panel);
      for (int64_t b = 0; b < cols / kBlock; ++b, in += kSourceBytes, out += kBytes) {
        std::memcpy(out + r * 2, in, 2);
        for (int64_t c = 0; c < kBlock; ++c) out[PlaceOf(c, r)] = in[2 + c];
      }
    }
  }
  static void Unpack(const void* panel, int32_t row, int64_t cols, float* out) {
    const auto* block = static_cast<const uint8_t*>(panel);
    for (int64_t b = 0; b < cols / kBlock; ++b, block += kBytes, out += kBlock) {
      const float scale = ScaleOf(block, row);
      for (int64_t c = 0; c < kBlock; ++c) {
        out[c] = scale * static_cast<float>(static_cast<int8_t>(block[PlaceOf(c, row)]));
      }
    }
  }
};

class Q80Words {
 public:
  static constexpr int kBytes = Q80Layout::kBytes;
  static constexpr bool kHasZero = false;

  explicit Q80Words(const uint8_t* block) : block_(block) {}
  void PrefetchBehind(int) const { PrefetchAhead(block_, kBytes); }
  Vec Scale(int, int, int v) const {
    return FromF16(reinterpret_cast<const uint16_t*>(block_) + v * kLanes);
  }
  template <int kGroup>
  void Words(int, ByteVec, int v, __m256i (&words)[2]) const {
    const uint8_t* p = block_ + Q80Layout::kCodesAt + kGroup * kIntRowBytes + v * kLanes * 2;
    for (int i = 0; i < 2; ++i, p += kPanelRows * 2) {
      words[i] = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    }
  }

 private:
  const uint8_t* block_;
};

// The same widened, less the zero point where the format has one. Per part F32 scales
// [kSubs][kPanelRows], then int16 [8][2: kOdd][kPanelRows][2].
template <BlockTraits kTraits, typename Packed>
class ExpandedWords {
 public:
  using Shape = PanelShape<kTraits>;
  static constexpr bool kHasZero = false;
  static constexpr int kPartBytes = kIntRowBytes * (Shape::kSubs + 2 * kGroupsOfFour);
  static constexpr int kBytes = Shape::kParts * kPartBytes;

  explicit ExpandedWords(const uint8_t* block) : block_(block) {}

  void PrefetchBehind(int) const {}
  template <int kGroup>
  void Words(int part, ByteVec, int v, __m256i (&words)[2]) const {
    for (int i = 0; i < 2; ++i)
      words[i] = LoadIntSums(block_ + OffsetOf(part, Shape::kSubs + 2 * kGroup + i, v));
  }
  Vec Scale(int part, int h, int v) const { return LoadFloats(block_ + OffsetOf(part, h, v)); }

  static void Write(const Packed& from, ByteVec table, uint8_t* out) {
    for (int v = 0; v < 2; ++v) {
      for (int part = 0; part < Shape::kParts; ++part) {
        for (int h = 0; h < Shape::kSubs; ++h) {
          Put(from.Scale(part, h, v), out + OffsetOf(part, h, v));
        }
        [&]<int... kGroups>(std::integer_sequence<int, kGroups...>) {
          (PutGroup<kGroups>(from, table, part, v, out), ...);
        }
        (std::make_integer_sequence<int, kGroupsOfFour>());
      }
    }
  }

 private:
  template <typename T>
  static void Put(const T& value, uint8_t* out) {
    std::memcpy(out, &value, sizeof(value));
  }
  template <int kGroup>
  static void PutGroup(const Packed& from, ByteVec table, int part, int v, uint8_t* out) {
    __m256i words[2];
    from.template Words<kGroup>(part, table, v, words);
    for (int i = 0; i < 2; ++i) {
      if constexpr (kTraits.has_zero) words[i] = _mm256_sub_epi16(words[i], InPairs(from.Zero(v)));
      Put(words[i], out + OffsetOf(part, Shape::kSubs + 2 * kGroup + i, v));
    }
  }
  static constexpr int OffsetOf(int part, int row, int v) {
    return part * kPartBytes + row * kIntRowBytes + v * kLanes * 4;
  }

  const uint8_t* block_;
};

}  // namespace
}  // namespace heddle::kernels::cpu
