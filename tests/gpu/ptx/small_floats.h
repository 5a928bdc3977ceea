// F16, BF16 and E4M3 as float, exactly, and float as BF16. Source: IEEE 754-2008 binary16;
// ISA 5.2.3 "Alternate Floating-Point Data Formats".
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace heddle::ptx {

enum class SmallFloat : uint8_t { kF16, kBF16, kE4M3 };

inline float FloatOfBF16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// To nearest, ties to even; NaN is 0x7FFF, as the ISA's canonical one.
inline uint16_t BF16OfFloat(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) return 0x7FFF;
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// The bits moved to a float's places are too small by 2^112, subnormal ones too.
inline float FloatOfF16(uint16_t bits) {
  const uint32_t magnitude = uint32_t{bits & 0x7FFFu} << 13;
  const float scaled = std::bit_cast<float>(magnitude) * 0x1p112f;
  const uint32_t infinite = magnitude >= 0x7C00u << 13 ? 0x7F800000u : 0;
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(scaled) | infinite | sign);
}

// Four bits of exponent with a bias of 7, three of mantissa, no infinities.
inline float FloatOfE4M3(uint8_t bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  if (exponent == 15 && mantissa == 7) return std::bit_cast<float>(0x7FC00000u);
  const float magnitude = exponent == 0
                              ? std::ldexp(static_cast<float>(mantissa), -9)
                              : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

// REQUIRES: a type of 16 bits.
inline float FloatOf(uint16_t bits, SmallFloat type) {
  return type == SmallFloat::kBF16 ? FloatOfBF16(bits) : FloatOfF16(bits);
}

}  // namespace heddle::ptx
