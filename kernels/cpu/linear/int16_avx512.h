// Numbers of 16 bits in the halves of AVX-512's lanes, for products of bytes without VNNI.
// int16_avx2.h explains the names.
// REQUIRES: dot_avx512.h included before.
#pragma once

namespace heddle::kernels::cpu {
namespace {

constexpr int kMostSums = 16;

inline IntSums MultiplyBytes(ByteVec w, IntSums x) { return _mm512_maddubs_epi16(w, x); }
inline IntSums MultiplyPairs(IntSums a, IntSums b) { return _mm512_madd_epi16(a, b); }
inline IntSums MultiplyHalves(IntSums a, IntSums b) { return _mm512_mullo_epi16(a, b); }
inline IntSums AddHalves(IntSums a, IntSums b) { return _mm512_add_epi16(a, b); }
inline IntSums AddInts(IntSums a, IntSums b) { return _mm512_add_epi32(a, b); }
template <int kBits>
inline IntSums ShiftSigned(IntSums v) {
  return _mm512_srai_epi16(v, kBits);
}
inline IntSums InPairs(IntSums v) {
  return _mm512_mask_blend_epi16(0xaaaaaaaa, v, _mm512_slli_epi32(v, 16));
}
inline IntSums InOrder(IntSums v) {
  asm("" : "+v"(v));
  return v;
}

}  // namespace
}  // namespace heddle::kernels::cpu
