// The vector vocabulary of the kernel sources, for any processor: vectors of 4 floats by the
// compiler's extension, which also gives + - * / and comparisons on Vec and IntVec. vec_avx2.h and
// vec_avx512.h define the same names; each kernel source includes exactly one of the three, first.
//   LoadN, StoreN   the first n < kLanes elements; other lanes read as 0
//   FromF16, ToF16  kLanes halves, rounded to nearest even
//   Fma             a * b + c; with one rounding where the level has the instruction
//   TransposeTo     kLanes rows, which it may overwrite, to kLanes columns
// Everything has internal linkage: code compiled for an instruction set must never be the one copy
// that the linker keeps for other callers.
#pragma once

#include <cstdint>
#include <cstring>

namespace heddle::kernels::cpu {
namespace {

using Vec = float __attribute__((vector_size(16)));
using IntVec = int32_t __attribute__((vector_size(16)));
constexpr int kLanes = 4;
// 16 registers of SSE2: 4 x 2 accumulators leave room for temporaries without FMA.
constexpr int kMaxFloatTile = 4;

inline Vec Load(const float* p) {
  Vec v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
inline void Store(float* p, Vec v) { std::memcpy(p, &v, sizeof(v)); }
inline Vec Set(float x) { return Vec{x, x, x, x}; }
inline Vec Fma(Vec a, Vec b, Vec c) { return a * b + c; }
inline Vec Blend(IntVec mask, Vec a, Vec b) {
  IntVec ia, ib;
  std::memcpy(&ia, &a, sizeof(a));
  std::memcpy(&ib, &b, sizeof(b));
  IntVec mixed = (ia & mask) | (ib & ~mask);
  Vec v;
  std::memcpy(&v, &mixed, sizeof(v));
  return v;
}
inline Vec Max(Vec a, Vec b) { return Blend(a > b, a, b); }
inline Vec Min(Vec a, Vec b) { return Blend(a < b, a, b); }
inline Vec Abs(Vec a) { return Max(a, -a); }
inline Vec LoadN(const float* p, int n) {
  float lanes[kLanes] = {};
  std::memcpy(lanes, p, static_cast<size_t>(n) * sizeof(float));
  return Load(lanes);
}
inline void StoreN(float* p, Vec v, int n) {
  std::memcpy(p, &v, static_cast<size_t>(n) * sizeof(float));
}
inline float ReduceMax(Vec v) {
  float a = v[0] > v[1] ? v[0] : v[1];
  float b = v[2] > v[3] ? v[2] : v[3];
  return a > b ? a : b;
}

inline uint16_t FloatToHalf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  uint32_t sign = (bits >> 16) & 0x8000;
  uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);
  if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);
  if (magnitude < 0x38800000) {  // subnormal: the FPU rounds to units of 2^-24
    float x;
    std::memcpy(&x, &magnitude, sizeof(x));
    x += 0.5f;
    std::memcpy(&bits, &x, sizeof(x));
    return static_cast<uint16_t>(sign | (bits - 0x3f000000));
  }
  magnitude += 0xfff + ((magnitude >> 13) & 1) - (112u << 23);
  return static_cast<uint16_t>(sign | (magnitude >> 13));
}
inline Vec FromF16(const uint16_t* p) {
  const IntVec half = {p[0], p[1], p[2], p[3]};
  const IntVec magnitude = (half & 0x7fff) << 13;
  // Scaling by 2^112 moves the exponent's bias, for subnormals as well.
  Vec finite;
  std::memcpy(&finite, &magnitude, sizeof(finite));
  finite *= 0x1p112f;
  IntVec bits;
  std::memcpy(&bits, &finite, sizeof(bits));
  const IntVec not_finite = magnitude >= 0x0f800000;  // infinity or NaN
  bits = (bits & ~not_finite) | ((magnitude + 0x70000000) & not_finite);
  bits |= (half & 0x8000) << 16;
  Vec v;
  std::memcpy(&v, &bits, sizeof(v));
  return v;
}
inline void ToF16(uint16_t* p, Vec v) {
  for (int i = 0; i < kLanes; ++i) p[i] = FloatToHalf(v[i]);
}

inline void TransposeTo(Vec (&rows)[kLanes], float* out, int64_t out_stride) {
  for (int i = 0; i < kLanes; ++i) {
    for (int j = 0; j < kLanes; ++j) out[j * out_stride + i] = rows[i][j];
  }
}

}  // namespace
}  // namespace heddle::kernels::cpu
