// Numbers of 16 bits in the halves of AVX2's lanes, for products of bytes without VNNI.
// REQUIRES: dot_avx2.h included before.
#pragma once

namespace heddle::kernels::cpu {
namespace {

// Sums of 16 bits that registers have room for.
constexpr int kMostSums = 8;

// The products of unsigned w and signed x, neighbours added; REQUIRES: they fit.
inline IntSums MultiplyBytes(ByteVec w, IntSums x) { return _mm256_maddubs_epi16(w, x); }
// The products of halves, both of a lane added.
inline IntSums MultiplyPairs(IntSums a, IntSums b) { return _mm256_madd_epi16(a, b); }
inline IntSums MultiplyHalves(IntSums a, IntSums b) { return _mm256_mullo_epi16(a, b); }
inline IntSums AddHalves(IntSums a, IntSums b) { return _mm256_add_epi16(a, b); }
inline IntSums AddInts(IntSums a, IntSums b) { return _mm256_add_epi32(a, b); }
template <int kBits>
inline IntSums ShiftSigned(IntSums v) {  // each half, to the right
  return _mm256_srai_epi16(v, kBits);
}

// Each lane's small integer in both of its halves.
inline IntSums InPairs(IntSums v) { return _mm256_blend_epi16(v, _mm256_slli_epi32(v, 16), 0xaa); }

// Returns v as a value of unknown origin. GCC 12 makes trees from long integer sums otherwise,
// whose branches do not fit the registers.
inline IntSums InOrder(IntSums v) {
  asm("" : "+x"(v));
  return v;
}

}  // namespace
}  // namespace heddle::kernels::cpu
