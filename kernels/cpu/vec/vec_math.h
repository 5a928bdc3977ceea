// Elementary functions on Vec, from + - * / and Fma alone, so that every level has them.
// REQUIRES: one of the vec_*.h headers included before this one.
#pragma once

#include <cstdint>
#include <cstring>

namespace heddle::kernels::cpu {
namespace {

inline IntVec Bits(Vec v) {
  IntVec bits;
  std::memcpy(&bits, &v, sizeof(v));
  return bits;
}
inline Vec FromBits(IntVec bits) {
  Vec v;
  std::memcpy(&v, &bits, sizeof(v));
  return v;
}
// a + b, wrapping around.
inline IntVec WrappingAdd(IntVec a, IntVec b) {
  using Words = uint32_t __attribute__((vector_size(kLanes * 4)));
  return reinterpret_cast<IntVec>(reinterpret_cast<Words>(a) + reinterpret_cast<Words>(b));
}
inline Vec Select(IntVec mask, Vec a, Vec b) {
  return FromBits((Bits(a) & mask) | (Bits(b) & ~mask));
}
inline Vec Zero() { return Set(0.0f); }

// Sum of the lanes as a tree of halves: the same order at every call.
inline float ReduceAdd(Vec v) {
  float lanes[kLanes];
  Store(lanes, v);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

inline Vec FromBF16(const uint16_t* p) {
  using Halves = uint16_t __attribute__((vector_size(kLanes * 2)));
  Halves halves;
  std::memcpy(&halves, p, sizeof(halves));
  return FromBits(__builtin_convertvector(halves, IntVec) << 16);
}
inline void ToBF16(uint16_t* p, Vec v) {
  using Halves = uint16_t __attribute__((vector_size(kLanes * 2)));
  using Words = uint32_t __attribute__((vector_size(kLanes * 4)));
  Words bits;
  std::memcpy(&bits, &v, sizeof(v));
  Words rounded = bits + 0x7fff + ((bits >> 16) & 1);
  IntVec is_nan = v != v;
  Words mask;
  std::memcpy(&mask, &is_nan, sizeof(mask));
  rounded = (rounded & ~mask) | ((bits | 0x400000) & mask);
  Halves halves = __builtin_convertvector(rounded >> 16, Halves);
  std::memcpy(p, &halves, sizeof(halves));
}

// x = n ln 2 + r with |r| <= ln 2 / 2, and e^r - 1 by its Taylor polynomial of degree 7, whose
// remainder 0.347^8 / 8! is 5e-9. `power` holds 2^(n - 1): with n - 1 it covers all results.
struct ExpParts {
  Vec fraction;  // e^r - 1
  Vec power;     // 2^(n - 1)
};
inline ExpParts SplitExp(Vec x) {
  const Vec magic = Set(0x1.8p23f);  // adding it rounds to an integer in the low bits
  Vec shifted = Fma(x, Set(0x1.715476p0f), magic);  // log2(e)
  Vec n = shifted - magic;
  Vec r = Fma(n, Set(-0x1.62e4p-1f), x);  // upper 15 bits of ln 2, whose product with n is exact
  r = Fma(n, Set(-0x1.7f7d1cp-20f), r);   // and the rest of ln 2
  Vec p = Set(1.0f / 5040);
  p = Fma(p, r, Set(1.0f / 720));
  p = Fma(p, r, Set(1.0f / 120));
  p = Fma(p, r, Set(1.0f / 24));
  p = Fma(p, r, Set(1.0f / 6));
  p = Fma(p, r, Set(0.5f));
  p = Fma(p * r, r, r);
  return {p, FromBits(WrappingAdd(Bits(shifted) << 23, IntVec{} + (126 << 23)))};
}

// Accurate to 2 units in the last place. Results under 2^-125 become 0; overflow gives infinity.
inline Vec Exp(Vec x) {
  const Vec highest = Set(0x1.62e42ep6f);  // the largest float whose exponential is finite
  const Vec lowest = Set(-86.6f);
  ExpParts parts = SplitExp(Max(Min(x, highest), lowest));
  Vec y = Fma(parts.power, parts.fraction, parts.power) * Set(2.0f);
  y = Select(x < lowest, Zero(), y);
  y = Select(x > highest, Set(__builtin_inff()), y);
  return Select(x != x, x, y);
}

// Exp of x <= 0, with fewer steps; NaN stays NaN. e^r is its Taylor polynomial of degree 7, whose
// last term is replaced by its best approximation of lower degree on |r| <= ln 2 / 2 (Chebyshev):
// the error is 2e-9, and 1.3e-8 since the factor of r is 1. The power of two is added to the
// exponent, which has room: results under 2^-125 become 0.
inline Vec ExpOfNegative(Vec x) {
  const Vec magic = Set(0x1.8p23f);
  const Vec shifted = Fma(x, Set(0x1.715476p0f), magic);
  const Vec n = shifted - magic;
  Vec r = Fma(n, Set(-0x1.62e4p-1f), x);  // as in SplitExp
  r = Fma(n, Set(-0x1.7f7d1cp-20f), r);
  Vec p = Fma(Set(1.0f / 720), r, Set(0.0083750393f));
  p = Fma(p, r, Set(1.0f / 24));
  p = Fma(p, r, Set(0.166664162f));
  p = Fma(p, r, Set(0.5f));
  p = Fma(p, r, Set(1.0f));
  p = Fma(p, r, Set(1.0f));
  const Vec y = FromBits(WrappingAdd(Bits(p), Bits(shifted) << 23));
  return Select(x < Set(-86.6f), Zero(), y);
}

// tanh(x) = (e^2x - 1) / (e^2x + 1); e^2x - 1 keeps its relative precision near zero.
inline Vec Tanh(Vec x) {
  Vec limited = Max(Min(x + x, Set(20.0f)), Set(-20.0f));  // 1 - tanh(10) is under half a unit
  ExpParts parts = SplitExp(limited);
  Vec expm1 = Fma(parts.power, parts.fraction, parts.power - Set(0.5f)) * Set(2.0f);
  Vec y = expm1 / (expm1 + Set(2.0f));
  return Select(x != x, x, y);
}

// 1 / (1 + e^-x).
inline Vec Sigmoid(Vec x) { return Set(1.0f) / (Set(1.0f) + Exp(-x)); }

// The normal distribution function: half of erfc(-x / sqrt 2). For z = |x| / sqrt 2 and
// t = 1 / (1 + z / 2), erfc(z) / 2 = exp(-z^2) t R(t); R is our own minimax fit of degree 8 for
// z in [0, 10], relative error 4e-8 (2e-7 in F32).
inline Vec NormalCdf(Vec x) {
  Vec z = Abs(x) * Set(0x1.6a09e6p-1f);  // 1 / sqrt 2
  Vec t = Set(1.0f) / Fma(z, Set(0.5f), Set(1.0f));
  Vec r = Set(-0x1.e3e52p-6f);
  r = Fma(r, t, Set(0x1.2367fp-3f));
  r = Fma(r, t, Set(-0x1.f2e528p-3f));
  r = Fma(r, t, Set(0x1.1cbe54p-3f));
  r = Fma(r, t, Set(-0x1.b44358p-7f));
  r = Fma(r, t, Set(0x1.9f1aa8p-4f));
  r = Fma(r, t, Set(0x1.f1e04ep-4f));
  r = Fma(r, t, Set(0x1.2127p-3f));
  r = Fma(r, t, Set(0x1.20db42p-3f));
  // Halving is exact, so only the rounding of x^2 affects the exponent.
  Vec tail = ExpOfNegative(x * x * Set(-0.5f)) * t * r;
  return Select(x > Zero(), Set(1.0f) - tail, tail);
}

}  // namespace
}  // namespace heddle::kernels::cpu
