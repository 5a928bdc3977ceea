// Blocks of a panel as sums16.h multiplies with them: codes as unsigned bytes, integer scales
// as pairs of int16. A panel in memory is a row of PackedCodes; ExpandedCodes hold the same
// decoded, while many rows of x pass.
// REQUIRES: block_parts.h and int16_*.h included before.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#include "kernels/block_format.h"

namespace heddle::kernels::cpu {
namespace {

// Lets the compiler keep nothing from before in registers, or spilled: loads are cheaper.
inline void LoadAgain() { asm volatile("" ::: "memory"); }

template <BlockTraits kTraits>
class PackedCodes : public PackedBlock<kTraits> {
 public:
  using Base = PackedBlock<kTraits>;
  using Shape = PanelShape<kTraits>;
  static constexpr int kLargestCode =
      Shape::kTable ? 12 + Shape::kBias : (1 << kTraits.code_bits) - 1;

  using Base::Base;

  // The integers of sub-block h of a part.
  IntSums ScalePairs(int part, int h, int v) const { return InPairs(Base::SubScale(part, h, v)); }
  // The factors of ScalePairs.
  Vec BlockScale(int v) const { return Base::scale_[v]; }
  IntSums ZeroPairs(int v) const { return InPairs(Base::Zero(v)); }
};

// The same with a byte for every code:
//   scale    F32 [kPanelRows]                    formats with integer sub-scales
//   offset   F32 [kPanelRows]                    formats with an offset
//   offsets  int32 [kOffsetPairs][kPanelRows]    formats with integer offsets
// and then per part
//   scales   F32 [kPanelRows], with sub-scales [kSubs][kPanelRows]; integers are in pairs
//   codes    [8][kPanelRows][4 bytes], less the zero point plus 16 where the format has one
template <BlockTraits kTraits>
class ExpandedCodes {
 public:
  using Shape = PanelShape<kTraits>;
  using Packed = PackedCodes<kTraits>;
  static constexpr bool kHasZero = false;
  static constexpr int kBias = kTraits.has_zero ? 16 : Shape::kBias;
  static constexpr int kLargestCode = kTraits.has_zero ? 31 : Packed::kLargestCode;
  static constexpr int kOffsetAt = Shape::kIntSubs ? kIntRowBytes : 0;
  static constexpr int kPairsAt = kOffsetAt + (kTraits.has_offset ? kIntRowBytes : 0);
  static constexpr int kPartsAt =
      kPairsAt + (Shape::kIntOffsets ? Shape::kOffsetPairs * kIntRowBytes : 0);
  static constexpr int kCodesAt = (Shape::kHasSubs ? Shape::kSubs : 1) * kIntRowBytes;
  static constexpr int kPartBytes = kCodesAt + kGroupsOfFour * kIntRowBytes;
  static constexpr int kBytes = kPartsAt + Shape::kParts * kPartBytes;
  static constexpr int kAheadLines = 0;

  explicit ExpandedCodes(const uint8_t* block) : block_(block) {}

  template <int kGroup>
  ByteVec Codes(int part, ByteVec, int v) const {
    return LoadBytes(Part(part) + kCodesAt + (kGroup * kPanelRows + v * kLanes) * 4);
  }
  Vec Scale(int part, int h, int v) const {
    return LoadFloats(Part(part) + (h * kPanelRows + v * kLanes) * 4);
  }
  IntSums ScalePairs(int part, int h, int v) const {
    return LoadIntSums(Part(part) + (h * kPanelRows + v * kLanes) * 4);
  }
  Vec BlockScale(int v) const { return LoadFloats(block_ + v * kLanes * 4); }
  Vec Offset(int v) const { return LoadFloats(block_ + kOffsetAt + v * kLanes * 4); }
  IntSums OffsetPair(int i, int v) const {
    return LoadIntSums(block_ + kPairsAt + (i * kPanelRows + v * kLanes) * 4);
  }

  // Writes the content of `from` to kBytes bytes.
  static void Write(const Packed& from, ByteVec table, uint8_t* out) {
    for (int v = 0; v < 2; ++v) {
      uint8_t* column = out + v * kLanes * 4;
      if constexpr (Shape::kIntSubs) Put(from.BlockScale(v), column);
      if constexpr (kTraits.has_offset) Put(from.Offset(v), column + kOffsetAt);
      if constexpr (Shape::kIntOffsets) {
        for (int i = 0; i < Shape::kOffsetPairs; ++i) {
          Put(from.OffsetPair(i, v), column + kPairsAt + i * kIntRowBytes);
        }
      }
      for (int part = 0; part < Shape::kParts; ++part) {
        WritePart(from, part, table, v, column + kPartsAt + part * kPartBytes);
      }
    }
  }

 private:
  template <typename T>
  static void Put(const T& value, uint8_t* out) {
    std::memcpy(out, &value, sizeof(value));
  }
  static void WritePart(const Packed& from, int part, ByteVec table, int v, uint8_t* out) {
    for (int h = 0; h < (Shape::kHasSubs ? Shape::kSubs : 1); ++h) {
      if constexpr (Shape::kIntSubs) {
        Put(from.ScalePairs(part, h, v), out + h * kIntRowBytes);
      } else {
        Put(from.Scale(part, h, v), out + h * kIntRowBytes);
      }
    }
    [&]<int... kGroups>(std::integer_sequence<int, kGroups...>) {
      (Put(CodesOf<kGroups>(from, part, table, v), out + kCodesAt + kGroups * kIntRowBytes), ...);
    }
    (std::make_integer_sequence<int, kGroupsOfFour>());
  }
  template <int kGroup>
  static ByteVec CodesOf(const Packed& from, int part, ByteVec table, int v) {
    const ByteVec codes = from.template Codes<kGroup>(part, table, v);
    if constexpr (!kTraits.has_zero) return codes;
    using Bytes = uint8_t __attribute__((vector_size(kLanes * 4)));
    const IntVec zeros = (AsIntVec(from.Zero(v)) & 0xff) * 0x01010101;
    const Bytes less = reinterpret_cast<Bytes>(codes) - reinterpret_cast<Bytes>(zeros);
    return reinterpret_cast<ByteVec>(less + static_cast<uint8_t>(16));
  }

  const uint8_t* Part(int part) const { return block_ + kPartsAt + part * kPartBytes; }

  const uint8_t* block_;
};

}  // namespace
}  // namespace heddle::kernels::cpu
