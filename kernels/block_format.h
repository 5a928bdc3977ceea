// The blocked weight formats: small codes, a scale for every few columns, and in some formats an
// offset or a zero point. Plain constants: kernel sources of every instruction set include it.
//
// The value of column k with code c, in sub-block s (16 or 32 columns) of its block:
//   scale * sub_scale[s] * (v(c) - zero)  +  offset * sub_offset[s]
// where v(c) is given by CodeValues; what a format lacks counts as 1, or as 0. All products of the
// integer formats are exact in F32, so that the sum's rounding is the only one, whatever the order.
// Sources: GGUF's block formats; OCP Microscaling Formats 1.0 for MXFP4; OCP 8-bit Floating Point
// 1.0 for E4M3; Dettmers et al. 2023 (QLoRA) for NF4; bitsandbytes for FP4; NVIDIA's TensorRT Model
// Optimizer for NVFP4.
#pragma once

#include <cstdint>

namespace heddle::kernels {

// In the same order as in DType, from kFirstBlockFormat on.
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
  kInt4G32,
  kInt4G64,
  kInt4G128,
  kInt8G32,
  kInt8G128,
  kF8G32,
  kF8G128,
  kNF4,
  kTQ2_0,
  kNVFP4,
  kFP4,
  kIQ1,
  kIQ2,
  kIQ3XXS,
  kIQ3S,
};
constexpr int32_t kNumBlockFormats = 26;
constexpr int32_t kFirstBlockFormat = 5;  // as a DType

enum class CodeValues : uint8_t {
  kLinear,  // c - bias
  kInt8,    // c as a signed byte
  kIq4,     // kIq4Values[c]
  kE2m1,    // kE2m1Values[c]
  kE4m3,    // c as an 8-bit float without infinities
  kNf4,     // kNf4Values[c]
  kFp4,     // kFp4Values[c]
  kIq1,     // kIq1Values[c], and so on
  kIq2,
  kIq3Xxs,
  kIq3S,
};
enum class SubScales : uint8_t {
  kNone,
  kInt8,     // per sub-block a signed byte; with an offset also an unsigned byte of its own
  kNibbles,  // both in one byte: scale in the low nibble, offset in the high one
  kE4m3,     // per sub-block an 8-bit float without infinities
};
enum class ScaleType : uint8_t { kF16, kBF16, kF32 };

struct BlockTraits {
  int32_t columns;      // per block
  int32_t sub_columns;  // per sub-block: 16 or 32
  int32_t code_bits;
  int32_t bias;  // for linear codes
  CodeValues values;
  SubScales sub_scales;
  bool has_offset;
  bool has_zero;
  ScaleType scale;
};

inline constexpr BlockTraits kBlockTraits[kNumBlockFormats] = {
    {32, 32, 4, 0, CodeValues::kLinear, SubScales::kNone, true, false, ScaleType::kF16},
    {32, 32, 5, 16, CodeValues::kLinear, SubScales::kNone, false, false, ScaleType::kF16},
    {32, 32, 5, 0, CodeValues::kLinear, SubScales::kNone, true, false, ScaleType::kF16},
    {256, 16, 2, 0, CodeValues::kLinear, SubScales::kNibbles, true, false, ScaleType::kF16},
    {256, 16, 3, 4, CodeValues::kLinear, SubScales::kInt8, false, false, ScaleType::kF16},
    {256, 32, 4, 0, CodeValues::kLinear, SubScales::kInt8, true, false, ScaleType::kF16},
    {256, 32, 5, 0, CodeValues::kLinear, SubScales::kInt8, true, false, ScaleType::kF16},
    {256, 16, 6, 32, CodeValues::kLinear, SubScales::kInt8, false, false, ScaleType::kF16},
    {32, 32, 4, 0, CodeValues::kIq4, SubScales::kNone, false, false, ScaleType::kF16},
    {256, 32, 4, 0, CodeValues::kIq4, SubScales::kInt8, false, false, ScaleType::kF16},
    {32, 32, 4, 0, CodeValues::kE2m1, SubScales::kNone, false, false, ScaleType::kBF16},
    {32, 32, 4, 0, CodeValues::kLinear, SubScales::kNone, false, true, ScaleType::kF32},
    {64, 32, 4, 0, CodeValues::kLinear, SubScales::kNone, false, true, ScaleType::kF32},
    {128, 32, 4, 0, CodeValues::kLinear, SubScales::kNone, false, true, ScaleType::kF32},
    {32, 32, 8, 0, CodeValues::kInt8, SubScales::kNone, false, true, ScaleType::kF32},
    {128, 32, 8, 0, CodeValues::kInt8, SubScales::kNone, false, true, ScaleType::kF32},
    {32, 32, 8, 0, CodeValues::kE4m3, SubScales::kNone, false, false, ScaleType::kF32},
    {128, 32, 8, 0, CodeValues::kE4m3, SubScales::kNone, false, false, ScaleType::kF32},
    {64, 32, 4, 0, CodeValues::kNf4, SubScales::kNone, false, false, ScaleType::kF32},
    {256, 32, 2, 1, CodeValues::kLinear, SubScales::kNone, false, false, ScaleType::kF16},
    {64, 16, 4, 0, CodeValues::kE2m1, SubScales::kE4m3, false, false, ScaleType::kF32},
    {64, 32, 4, 0, CodeValues::kFp4, SubScales::kNone, false, false, ScaleType::kF32},
    {256, 16, 3, 0, CodeValues::kIq1, SubScales::kInt8, false, false, ScaleType::kF32},
    {256, 16, 3, 0, CodeValues::kIq2, SubScales::kInt8, false, false, ScaleType::kF32},
    {256, 32, 4, 0, CodeValues::kIq3Xxs, SubScales::kInt8, false, false, ScaleType::kF32},
    {256, 32, 4, 0, CodeValues::kIq3S, SubScales::kInt8, false, false, ScaleType::kF32},
};

inline constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                          1,    13,   25,  38,  53,  69,  89,  113};
// Q8_0 and Q4_0 are not among the blocked formats, but have the same structure.
inline constexpr BlockTraits kQ80Traits = {
    32, 32, 8, 0, CodeValues::kInt8, SubScales::kNone, false, false, ScaleType::kF16};
inline constexpr BlockTraits kQ40Traits = {
    32, 32, 4, 8, CodeValues::kLinear, SubScales::kNone, false, false, ScaleType::kF16};

// Twice the values of E2M1; the scales are halved.
inline constexpr int8_t kE2m1Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// GGUF's formats with grids: a magnitude, and the sign in the bit above it. Those of IQ1 are eight
// times -1, 0 or 1 and an eighth more or less; the scales are an eighth.
inline constexpr int8_t kIq1Values[16] = {-7, 1, 9, 0, -9, -1, 7};
inline constexpr int8_t kIq2Values[16] = {8, 25, 43, 0, -8, -25, -43};
inline constexpr int8_t kIq3XxsValues[16] = {4,  12,  20,  28,  36,  44,  52,  62,
                                             -4, -12, -20, -28, -36, -44, -52, -62};
inline constexpr int8_t kIq3SValues[16] = {1,  3,  5,  7,  9,  11,  13,  15,
                                           -1, -3, -5, -7, -9, -11, -13, -15};

// The integers that codes stand for, 16 of them, or nullptr where they are no table's.
constexpr const int8_t* IntTable(CodeValues values) {
  switch (values) {
    case CodeValues::kIq4:
      return kIq4Values;
    case CodeValues::kE2m1:
      return kE2m1Values;
    case CodeValues::kIq1:
      return kIq1Values;
    case CodeValues::kIq2:
      return kIq2Values;
    case CodeValues::kIq3Xxs:
      return kIq3XxsValues;
    case CodeValues::kIq3S:
      return kIq3SValues;
    default:
      return nullptr;
  }
}

inline constexpr float kNf4Values[16] = {-1.0f,
                                         -0.6961928009986877f,
                                         -0.5250730514526367f,
                                         -0.39491748809814453f,
                                         -0.28444138169288635f,
                                         -0.18477343022823334f,
                                         -0.09105003625154495f,
                                         0.0f,
                                         0.07958029955625534f,
                                         0.16093020141124725f,
                                         0.24611230194568634f,
                                         0.33791524171829224f,
                                         0.44070982933044434f,
                                         0.5626170039176941f,
                                         0.7229568362236023f,
                                         1.0f};

// Magnitudes are a sixteenth and small integers over twelve, in the order of the codes' three bits.
inline constexpr float kFp4Values[16] = {
    0.0f, 0.0625f / 12,  8.0f / 12,  1.0f,  4.0f / 12,  6.0f / 12,  2.0f / 12,  3.0f / 12,
    0.0f, -0.0625f / 12, -8.0f / 12, -1.0f, -4.0f / 12, -6.0f / 12, -2.0f / 12, -3.0f / 12};

}  // namespace heddle::kernels
