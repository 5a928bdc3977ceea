// The parts of a blocked format's panel (block_panels.h has the layout), as vectors: codes in the
// form of the level's dot product, scales and offsets in F32. A panel in memory is a row of
// PackedBlocks; ExpandedBlocks hold the same decoded, while many rows of x pass. Both have the
// members that the products in linear_blocks.h and linear_shared.h use.
//
// REQUIRES: vec_*.h, vec_math.h, linear_float.h and linear_int8.h included before, and defined:
//   ByteVec, IntSums     kLanes x 4 bytes; kLanes int32
//   LoadBytes, And(bytes, mask), Or, Flip (the top bit of each byte), LoadTable(16 bytes),
//   Lookup(table, indices below 16)
//   Shift<n>        each 16 bits: right by n, left by -n
//   SetInts, ToFloat, IntsFromInt8(p), IntsFromUint8(p)   kLanes at a time
//   DotAdd<S>(sum, w, x)    sum + the four products of each lane with the bytes of x; S: w is
//                           signed, plus kTableBias
//   DotAdd16(sum, w, x)     sum + the two products of each lane's 16-bit halves with those of x
//   kTableBias      added to signed values so that products can take them: 128 or 0
//   kE2m1Bias       the same for values of E2M1
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#include "kernels/block_format.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/linear/block_panels.h"

namespace heddle::kernels::cpu {
namespace {

constexpr int kGroupsOfFour = 8;  // columns of a part, by fours
constexpr int kIntRowBytes = kPanelRows * 4;

inline IntVec AsIntVec(IntSums v) { return reinterpret_cast<IntVec>(v); }
inline IntSums AsIntSums(IntVec v) { return reinterpret_cast<IntSums>(v); }
inline IntSums LoadIntSums(const uint8_t* p) {
  IntSums v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
inline Vec LoadFloats(const uint8_t* p) {
  Vec v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

// Whether IntTable has a table for `values`. With -fsanitize=undefined GCC 12 takes no comparison
// of a table's address for a constant.
constexpr bool HasIntTable(CodeValues values) {
  switch (values) {
    case CodeValues::kLinear:
    case CodeValues::kInt8:
    case CodeValues::kE4m3:
    case CodeValues::kNf4:
    case CodeValues::kFp4:
      return false;
    default:
      return true;
  }
}

// The constants of a format's panels at this level. A part is 32 columns of a block.
template <BlockTraits kTraits>
struct PanelShape {
  static constexpr int kLowBits = kTraits.code_bits < 4 ? 2 : kTraits.code_bits < 8 ? 4 : 8;
  static constexpr int kHighBits = kTraits.code_bits - kLowBits;
  static constexpr int kSubs = kBlock / kTraits.sub_columns;
  static constexpr bool kHasSubs = kTraits.sub_scales != SubScales::kNone;
  static constexpr bool kNibbles = kTraits.sub_scales == SubScales::kNibbles;
  static constexpr bool kFloatSubs = kTraits.sub_scales == SubScales::kE4m3;
  static constexpr bool kIntSubs = kHasSubs && !kFloatSubs;
  // Offsets are integers times an F32 of the block, or one F32 each.
  static constexpr bool kIntOffsets = kTraits.has_offset && kHasSubs;
  static constexpr bool kFloatOffsets = kTraits.has_offset && !kHasSubs;
  static constexpr bool kSigned = kTraits.values != CodeValues::kLinear;
  static constexpr bool kTable = HasIntTable(kTraits.values);
  static constexpr int kValueBias = kTraits.values == CodeValues::kE2m1 ? kE2m1Bias : kTableBias;
  static constexpr int kBias = kSigned ? kValueBias : kTraits.bias;
  static constexpr int kScaleBytes = kTraits.scale == ScaleType::kF32 ? 4 : 2;
  static constexpr int kHeaderBytes =
      kPanelRows * (kScaleBytes + (kTraits.has_offset ? 2 : 0) + (kTraits.has_zero ? 1 : 0));
  static constexpr int kLowPlane =
      kHasSubs ? kPanelRows * kSubs * (kTraits.has_offset && !kNibbles ? 2 : 1) : 0;
  static constexpr int kHighPlane = kLowPlane + kLowBits * kPanelRows * 4;
  static constexpr int kPartBytes = kHighPlane + kHighBits * kPanelRows * 4;
  static constexpr int kParts = kTraits.columns / kBlock;
  static constexpr int kOffsetPairs = kParts * kSubs / 2;

  // Formats without a table have one of zeros, which nothing reads.
  static ByteVec Table() {
    uint8_t entries[16] = {};
    if constexpr (kTable) {
      for (int i = 0; i < 16; ++i) {
        entries[i] = static_cast<uint8_t>(IntTable(kTraits.values)[i] + kValueBias);
      }
    }
    return LoadTable(entries);
  }
};

// One block of a panel in memory.
template <BlockTraits kTraits>
class PackedBlock {
 public:
  using Shape = PanelShape<kTraits>;
  static constexpr int kBytes = Shape::kHeaderBytes + Shape::kParts * Shape::kPartBytes;
  // Lines that Prefetches asks for with each part. Those of headers are left to the processor: if
  // all lines were asked for, it would not look ahead by itself, and one row of Q4_0 took 17 %
  // longer (Zen 5, AVX-512).
  static constexpr int kAheadLines = LinesOf(Shape::kPartBytes);
  static constexpr bool kSigned = Shape::kSigned;  // as DotAdd expects the codes
  static constexpr int kBias = Shape::kBias;       // excess of codes over values
  static constexpr bool kHasZero = kTraits.has_zero;

  explicit PackedBlock(const uint8_t* block) : parts_(block + Shape::kHeaderBytes) {
    const uint8_t* rest = block + kPanelRows * Shape::kScaleBytes;
    for (int v = 0; v < 2; ++v) {
      scale_[v] = LoadScale(block + v * kLanes * Shape::kScaleBytes);
      if constexpr (kTraits.has_offset) {
        offset_[v] = FromF16(reinterpret_cast<const uint16_t*>(rest) + v * kLanes);
      }
      if constexpr (kTraits.has_zero) {
        zero_[v] = IntsFromInt8(reinterpret_cast<const int8_t*>(rest) + v * kLanes);
      }
    }
  }

  // The codes, or table entries, of columns 4 kGroup .. of the rows of vector v, as DotAdd expects
  // them.
  template <int kGroup>
  ByteVec Codes(int part, ByteVec table, int v) const {
    const uint8_t* planes = Part(part);
    ByteVec codes = Field<kGroup, Shape::kLowBits, 0>(planes + Shape::kLowPlane, v);
    if constexpr (Shape::kHighBits > 0) {
      codes = Or(codes,
                 Field<kGroup, Shape::kHighBits, Shape::kLowBits>(planes + Shape::kHighPlane, v));
    }
    if constexpr (Shape::kTable) codes = Lookup(table, codes);
    if constexpr (kTraits.values == CodeValues::kInt8 && kTableBias != 0) codes = Flip(codes);
    return codes;
  }

  // The scale of sub-block h of a part.
  Vec Scale(int part, int h, int v) const {
    if constexpr (!Shape::kHasSubs) return scale_[v];
    if constexpr (Shape::kFloatSubs) return scale_[v] * FloatSubScale(part, h, v);
    return scale_[v] * ToFloat(SubScale(part, h, v));
  }
  Vec Offset(int v) const { return offset_[v]; }
  IntSums Zero(int v) const { return zero_[v]; }
  // Whether all rows' zero points are 0.
  bool IsSymmetric() const {
    const IntVec any = AsIntVec(zero_[0]) | AsIntVec(zero_[1]);
    return ReduceMax(ToFloat(AsIntSums((any != 0) & 1))) == 0;
  }
  // The integers of sub-blocks 2 i and 2 i + 1 of the block, in the low and high 16 bits of each
  // lane.
  IntSums OffsetPair(int i, int v) const {
    const IntVec low = AsIntVec(SubOffset(2 * i, v));
    const IntVec high = AsIntVec(SubOffset(2 * i + 1, v));
    return AsIntSums(low | (high << 16));
  }

 protected:
  // The integer of sub-block h of a part.
  IntSums SubScale(int part, int h, int v) const {
    const uint8_t* p = Part(part) + h * kPanelRows + v * kLanes;
    if constexpr (Shape::kNibbles) return Nibbles<0>(p);
    return IntsFromInt8(reinterpret_cast<const int8_t*>(p));
  }

  Vec scale_[2];

 private:
  // E4M3's sign, exponent and mantissa at their places in F32; 2^120 adjusts the exponent's bias.
  Vec FloatSubScale(int part, int h, int v) const {
    const IntVec top = AsIntVec(IntsFromUint8(Part(part) + h * kPanelRows + v * kLanes)) << 24;
    return FromBits((top & INT32_MIN) | ((top >> 4) & 0x07f00000)) * Set(0x1p120f);
  }

  static Vec LoadScale(const uint8_t* p) {
    if constexpr (kTraits.scale == ScaleType::kF32) return LoadFloats(p);
    const auto* halves = reinterpret_cast<const uint16_t*>(p);
    return kTraits.scale == ScaleType::kF16 ? FromF16(halves) : FromBF16(halves);
  }

  // The field of group g in a plane of kBits bits at vector v, moved up to bit kTo.
  template <int kGroup, int kBits, int kTo>
  static ByteVec Field(const uint8_t* plane, int v) {
    ByteVec word = LoadBytes(plane + (kGroup % kBits * kPanelRows + v * kLanes) * 4);
    constexpr int kShift = kBits * (kGroup / kBits) - kTo;
    if constexpr (kShift != 0) word = Shift<kShift>(word);
    if constexpr (kBits == 8) return word;
    return And(word, static_cast<uint8_t>(((1 << kBits) - 1) << kTo));
  }

  template <int kShift>
  static IntSums Nibbles(const uint8_t* p) {
    return AsIntSums((AsIntVec(IntsFromUint8(p)) >> kShift) & 15);
  }

  IntSums SubOffset(int sub, int v) const {
    const uint8_t* scales = Part(sub / Shape::kSubs) + v * kLanes;
    const int h = sub % Shape::kSubs;
    if constexpr (Shape::kNibbles) return Nibbles<4>(scales + h * kPanelRows);
    return IntsFromUint8(scales + (Shape::kSubs + h) * kPanelRows);
  }

  const uint8_t* Part(int part) const { return parts_ + part * Shape::kPartBytes; }

  const uint8_t* parts_;
  Vec offset_[2];
  IntSums zero_[2];
};

// The same with a byte for every code and F32 for every scale:
//   offset       F32 [kPanelRows]                    formats with an offset
//   pairs        int32 [kOffsetPairs][kPanelRows]    formats with integer offsets
// and then per part
//   scales       F32 [kSubs][kPanelRows]
//   codes        [8][kPanelRows][4 bytes], as DotAdd takes them; less the zero point where the
//                format has one, plus kTableBias
template <BlockTraits kTraits>
class ExpandedBlock {
 public:
  using Shape = PanelShape<kTraits>;
  static constexpr bool kSigned = Shape::kSigned || kTraits.has_zero;
  static constexpr int kBias = kTraits.has_zero ? kTableBias : Shape::kBias;
  static constexpr bool kHasZero = false;
  static constexpr int kPairsAt = kTraits.has_offset ? kIntRowBytes : 0;
  static constexpr int kPartsAt =
      kPairsAt + (Shape::kIntOffsets ? Shape::kOffsetPairs * kIntRowBytes : 0);
  static constexpr int kCodesAt = Shape::kSubs * kIntRowBytes;  // within a part
  static constexpr int kPartBytes = kCodesAt + kGroupsOfFour * kIntRowBytes;
  static constexpr int kBytes = kPartsAt + Shape::kParts * kPartBytes;
  static constexpr int kAheadLines = 0;

  explicit ExpandedBlock(const uint8_t* block) : block_(block) {}

  template <int kGroup>
  ByteVec Codes(int part, ByteVec, int v) const {
    return LoadBytes(Part(part) + kCodesAt + (kGroup * kPanelRows + v * kLanes) * 4);
  }
  Vec Scale(int part, int h, int v) const {
    return LoadFloats(Part(part) + (h * kPanelRows + v * kLanes) * 4);
  }
  Vec Offset(int v) const { return LoadFloats(block_ + v * kLanes * 4); }
  IntSums OffsetPair(int i, int v) const {
    return LoadIntSums(block_ + kPairsAt + (i * kPanelRows + v * kLanes) * 4);
  }

  // Writes the content of `from` to kBytes bytes.
  static void Write(const PackedBlock<kTraits>& from, ByteVec table, uint8_t* out) {
    for (int v = 0; v < 2; ++v) {
      uint8_t* column = out + v * kLanes * 4;
      if constexpr (kTraits.has_offset) Put(from.Offset(v), column);
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
  static void WritePart(const PackedBlock<kTraits>& from, int part, ByteVec table, int v,
                        uint8_t* out) {
    for (int h = 0; h < Shape::kSubs; ++h) Put(from.Scale(part, h, v), out + h * kIntRowBytes);
    [&]<int... kGroups>(std::integer_sequence<int, kGroups...>) {
      (Put(CodesOf<kGroups>(from, part, table, v), out + kCodesAt + kGroups * kIntRowBytes), ...);
    }
    (std::make_integer_sequence<int, kGroupsOfFour>());
  }
  // Zero points of four-bit codes have four bits too, so a byte holds the difference.
  template <int kGroup>
  static ByteVec CodesOf(const PackedBlock<kTraits>& from, int part, ByteVec table, int v) {
    const ByteVec codes = from.template Codes<kGroup>(part, table, v);
    if constexpr (!kTraits.has_zero) return codes;
    static_assert(!kTraits.has_zero || kTraits.code_bits == 4);
    using Bytes = uint8_t __attribute__((vector_size(kLanes * 4)));
    const IntVec zeros = (AsIntVec(from.Zero(v)) & 0xff) * 0x01010101;
    const Bytes less = reinterpret_cast<Bytes>(codes) - reinterpret_cast<Bytes>(zeros);
    return reinterpret_cast<ByteVec>(less + static_cast<uint8_t>(kTableBias));
  }

  const uint8_t* Part(int part) const { return block_ + kPartsAt + part * kPartBytes; }

  const uint8_t* block_;
};

// Panels of PackedBlocks as panels of ExpandedBlocks, for MakeExpandable.
template <BlockTraits kTraits>
struct PanelExpansion {
  static int64_t ExpandedBytes(int64_t cols) {
    return cols / kTraits.columns * ExpandedBlock<kTraits>::kBytes;
  }
  static void Expand(const void* panel, int64_t cols, void* out) {
    const ByteVec table = PanelShape<kTraits>::Table();
    const auto* from = static_cast<const uint8_t*>(panel);
    auto* to = static_cast<uint8_t*>(out);
    for (int64_t begin = 0; begin < cols; begin += kTraits.columns) {
      ExpandedBlock<kTraits>::Write(PackedBlock<kTraits>(from), table, to);
      from += PackedBlock<kTraits>::kBytes;
      to += ExpandedBlock<kTraits>::kBytes;
    }
  }
};

}  // namespace
}  // namespace heddle::kernels::cpu
