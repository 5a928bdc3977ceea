// Functions of recurrences on Vec: powers, and the gates and steps that are made of them.
// REQUIRES: one of the vec_*.h headers and vec_math.h included before this one.
#pragma once

#include <cstdint>

namespace heddle::kernels::cpu {
namespace {

// 2^x of x <= 0; NaN stays NaN. x is a whole number and an exact rest of up to 1/2, whose power is
// a polynomial of degree 5 by our own minimax fit, with the value 1 at 0, so that what decays
// slowly keeps its size: relative error 9e-8, 1.7e-7 in F32. Results under 2^-125 become 0.
inline Vec PowerOfTwo(Vec x) {
  const Vec magic = Set(0x1.8p23f);  // adding it rounds to an integer in the low bits
  const Vec shifted = x + magic;
  const Vec r = x - (shifted - magic);
  Vec p = Fma(Set(0x1.5bba14p-10f), r, Set(0x1.3cea88p-7f));
  p = Fma(p, r, Set(0x1.c6b752p-5f));
  p = Fma(p, r, Set(0x1.ebf9bcp-3f));
  p = Fma(p, r, Set(0x1.62e42ap-1f));
  p = Fma(p, r, Set(1.0f));
  const Vec y = FromBits(WrappingAdd(Bits(p), Bits(shifted) << 23));
  return x < Set(-125.0f) ? Zero() : y;
}

constexpr float kLog2OfE = 0x1.715476p0f;

// x / (1 + e^-x). The power is one of -|x|: of a negative x it is the numerator, too.
inline Vec Silu(Vec x) {
  const Vec power = PowerOfTwo(Abs(x) * Set(-kLog2OfE));
  const Vec numerator = x < Zero() ? power : Set(1.0f);
  return x * (numerator / (Set(1.0f) + power));
}

// log(1 + e^x) = max(x, 0) + log(1 + t) with t = e^-|x|, and log(1 + t) is twice the inverse
// hyperbolic tangent of t / (2 + t), up to a third: the series is cut behind the 15th power, where
// 2e-9 of it are left.
inline Vec Softplus(Vec x) {
  const Vec t = ExpOfNegative(-Abs(x));
  const Vec s = t / (t + Set(2.0f));
  const Vec square = s * s;
  Vec series = Set(1.0f / 15);
  for (int power = 13; power > 0; power -= 2) {
    series = Fma(series, square, Set(1.0f / static_cast<float>(power)));
  }
  return Max(x, Zero()) + Set(2.0f) * s * series;
}

}  // namespace
}  // namespace heddle::kernels::cpu
