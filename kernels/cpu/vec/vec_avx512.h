// Vectors of 16 floats for the AVX-512 kernels; see vec_portable.h for the meaning of each name.
// Everything has internal linkage: code compiled for an instruction set must never be the one copy
// that the linker keeps for other callers.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace heddle::kernels::cpu {
namespace {

using Vec = __m512;
using IntVec = int32_t __attribute__((vector_size(64)));
constexpr int kLanes = 16;
// Registers allow 12 x 2 accumulators beside two weight vectors and a broadcast (32 in all).
constexpr int kMaxFloatTile = 12;

inline Vec Load(const float* p) { return _mm512_loadu_ps(p); }
inline void Store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
inline Vec Set(float x) { return _mm512_set1_ps(x); }
inline Vec Fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
inline Vec Max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
inline Vec Min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
inline Vec Abs(Vec a) { return _mm512_abs_ps(a); }
inline Vec FromF16(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline void ToF16(uint16_t* p, Vec v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline Vec LoadN(const float* p, int n) {
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), p);
}
inline void StoreN(float* p, Vec v, int n) {
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1), v);
}
inline float ReduceMax(Vec v) { return _mm512_reduce_max_ps(v); }

// Four stages of interleaving: single lanes, pairs, quarters, halves.
inline void TransposeTo(Vec (&r)[kLanes], float* out, int64_t out_stride) {
  Vec t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
    r[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    Store(out + i * out_stride, _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88));
    Store(out + (i + 4) * out_stride, _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88));
    Store(out + (i + 8) * out_stride, _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd));
    Store(out + (i + 12) * out_stride, _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd));
  }
}

}  // namespace
}  // namespace heddle::kernels::cpu
