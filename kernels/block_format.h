// What the blocked weight formats consist of: small unsigned codes, a scale for every few columns,
// in some formats an offset. Plain constants: kernel sources of every instruction set include it.
//
// The value of column k with code c, in sub-block s (16 or 32 columns) of its block:
//   scale * sub_scale[s] * v(c)  +  offset * sub_offset[s]
// where v(c) is c - bias or an entry of a table; without sub-scales those factors are 1. All
// products are exact in F32, so that the sum's rounding is the only one, whatever the order.
// Sources: GGUF's block formats; OCP Microscaling Formats 1.0 for MXFP4.
#pragma once

#include <cstdint>

namespace heddle::kernels {

// Same order as in DType, from kFirstBlockFormat on.
enum class BlockFormat : uint8_t {
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ4_NL,
  kIQ4_XS,
  kMXFP4,
};
constexpr int32_t kNumBlockFormats = 11;
constexpr int32_t kFirstBlockFormat = 5;  // as a DType

enum class CodeValues : uint8_t { kLinear, kIq4, kE2m1 };
enum class SubScales : uint8_t {
  kNone,
  kInt8,     // per sub-block a signed byte; with an offset also an unsigned byte of its own
  kNibbles,  // both as the two halves of a byte: scale low, offset high
};

struct BlockTraits {
  int32_t columns;      // of a block
  int32_t sub_columns;  // of a sub-block: 16 or 32
  int32_t code_bits;
  int32_t bias;  // of linear codes
  CodeValues values;
  SubScales sub_scales;
  bool has_offset;
  bool scale_is_bf16;  // F16 otherwise
};

inline constexpr BlockTraits kBlockTraits[kNumBlockFormats] = {
    {32, 32, 4, 0, CodeValues::kLinear, SubScales::kNone, true, false},      // Q4_1
    {32, 32, 5, 16, CodeValues::kLinear, SubScales::kNone, false, false},    // Q5_0
    {32, 32, 5, 0, CodeValues::kLinear, SubScales::kNone, true, false},      // Q5_1
    {256, 16, 2, 0, CodeValues::kLinear, SubScales::kNibbles, true, false},  // Q2_K
    {256, 16, 3, 4, CodeValues::kLinear, SubScales::kInt8, false, false},    // Q3_K
    {256, 32, 4, 0, CodeValues::kLinear, SubScales::kInt8, true, false},     // Q4_K
    {256, 32, 5, 0, CodeValues::kLinear, SubScales::kInt8, true, false},     // Q5_K
    {256, 16, 6, 32, CodeValues::kLinear, SubScales::kInt8, false, false},   // Q6_K
    {32, 32, 4, 0, CodeValues::kIq4, SubScales::kNone, false, false},        // IQ4_NL
    {256, 32, 4, 0, CodeValues::kIq4, SubScales::kInt8, false, false},       // IQ4_XS
    {32, 32, 4, 0, CodeValues::kE2m1, SubScales::kNone, false, true},        // MXFP4
};

inline constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                          1,    13,   25,  38,  53,  69,  89,  113};
// Twice the values of E2M1; the scales are halved.
inline constexpr int8_t kE2m1Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

}  // namespace heddle::kernels
