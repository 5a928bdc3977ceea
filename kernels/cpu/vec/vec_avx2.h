// Vectors of 8 floats for the AVX2 kernels; see vec_portable.h for the meaning of each name.
// Everything has internal linkage: code compiled for an instruction set must never be the one copy
// that the linker keeps for other callers.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace heddle::kernels::cpu {
namespace {

using Vec = __m256;
using IntVec = int32_t __attribute__((vector_size(32)));
constexpr int kLanes = 8;
// Registers allow 6 x 2 accumulators beside two weight vectors and a broadcast (16 in all).
constexpr int kMaxFloatTile = 6;

inline Vec Load(const float* p) { return _mm256_loadu_ps(p); }
inline void Store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
inline Vec Set(float x) { return _mm256_set1_ps(x); }
inline Vec Fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
inline Vec Max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
inline Vec Min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
inline Vec Abs(Vec a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
inline Vec FromF16(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline void ToF16(uint16_t* p, Vec v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
inline Vec LoadN(const float* p, int n) {
  float lanes[kLanes] = {};
  std::memcpy(lanes, p, static_cast<size_t>(n) * sizeof(float));
  return Load(lanes);
}
inline void StoreN(float* p, Vec v, int n) {
  float lanes[kLanes];
  Store(lanes, v);
  std::memcpy(p, lanes, static_cast<size_t>(n) * sizeof(float));
}
inline float ReduceMax(Vec v) {
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_shuffle_ps(x, x, 1)));
}

// Three stages of interleaving: single lanes, pairs, halves.
inline void TransposeTo(Vec (&r)[kLanes], float* out, int64_t out_stride) {
  Vec t[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    Store(out + i * out_stride, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
    Store(out + (i + 4) * out_stride, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
  }
}

}  // namespace
}  // namespace heddle::kernels::cpu
