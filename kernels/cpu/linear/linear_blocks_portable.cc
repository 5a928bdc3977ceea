// Products with the blocked formats for any processor.
#include "kernels/cpu/vec/vec_portable.h"

#include "kernels/cpu/vec/vec_math.h"

#include "kernels/cpu/linear/linear_float.h"

#include "kernels/cpu/linear/linear_int8.h"

namespace heddle::kernels::cpu {
namespace {

using ByteVec = uint8_t __attribute__((vector_size(16)));
using Words = uint16_t __attribute__((vector_size(16)));
using IntSums = IntVec;
constexpr int kTableBias = 0;  // table entries are read as signed bytes
constexpr int kE2m1Bias = kTableBias;

inline ByteVec LoadBytes(const uint8_t* p) {
  ByteVec v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}
inline ByteVec And(ByteVec v, uint8_t mask) { return v & mask; }
inline ByteVec Or(ByteVec a, ByteVec b) { return a | b; }
[[maybe_unused]] inline ByteVec Flip(ByteVec v) { return v ^ 0x80; }
template <int kBits>
inline ByteVec Shift(ByteVec v) {
  Words words;
  std::memcpy(&words, &v, sizeof(v));
  words = kBits > 0 ? words >> (kBits & 15) : words << (-kBits & 15);
  std::memcpy(&v, &words, sizeof(v));
  return v;
}
inline ByteVec LoadTable(const uint8_t* entries) { return LoadBytes(entries); }
// Not inlined, because every code of a format with a table passes through it.
[[gnu::noinline]] inline ByteVec Lookup(ByteVec table, ByteVec indices) {
  ByteVec out = {};
  for (int i = 0; i < 16; ++i) {
    const ByteVec entry = ByteVec{} + table[i];
    out |= entry & reinterpret_cast<ByteVec>(indices == static_cast<uint8_t>(i));
  }
  return out;
}
inline IntSums SetInts(int32_t x) { return IntSums{x, x, x, x}; }
inline Vec ToFloat(IntSums v) { return __builtin_convertvector(v, Vec); }
inline IntSums IntsFromInt8(const int8_t* p) { return IntSums{p[0], p[1], p[2], p[3]}; }
inline IntSums IntsFromUint8(const uint8_t* p) { return IntSums{p[0], p[1], p[2], p[3]}; }

using Halves = int16_t __attribute__((vector_size(16)));

// The sums of neighbouring 16-bit elements.
inline IntVec PairSums(Halves v) {
  const auto pairs = reinterpret_cast<IntVec>(v);
  return ((pairs << 16) >> 16) + (pairs >> 16);
}
inline IntSums DotAdd16(IntSums sum, IntSums w, int32_t x) {
  const int32_t low = static_cast<int16_t>(x);
  return sum + ((w << 16) >> 16) * low + (w >> 16) * (x >> 16);
}
// A product of bytes fits into 16 bits, also of an unsigned with a signed one: bytes 0 and 2 of
// each lane are multiplied together, and then bytes 1 and 3.
template <bool kSigned>
inline IntSums DotAdd(IntSums sum, ByteVec w, const int8_t* x) {
  const auto words = reinterpret_cast<Halves>(w);
  const Halves unsigned_even = words & 0xff;
  const Halves even = kSigned ? (words << 8) >> 8 : unsigned_even;
  const Halves odd =
      kSigned ? words >> 8 : reinterpret_cast<Halves>(reinterpret_cast<Words>(w) >> 8);
  const Halves x_even = {x[0], x[2], x[0], x[2], x[0], x[2], x[0], x[2]};
  const Halves x_odd = {x[1], x[3], x[1], x[3], x[1], x[3], x[1], x[3]};
  return sum + PairSums(even * x_even) + PairSums(odd * x_odd);
}

struct FloatTable {
  const float* entries;
};
inline FloatTable LoadFloatTable(const float* entries) { return {entries}; }
template <int kShift>
inline Vec LookupFloat(FloatTable table, IntVec words) {
  Vec out;
  for (int i = 0; i < kLanes; ++i) out[i] = table.entries[(words[i] >> kShift) & 15];
  return out;
}

}  // namespace
}  // namespace heddle::kernels::cpu

#include "kernels/cpu/linear/linear_blocks.h"

namespace heddle::kernels::cpu {

extern const BlockKernels kBlocksPortable;
const BlockKernels kBlocksPortable =
    MakeBlockKernels(TileSizes<1, 2, 4>(), TileSizes<1, 2, 4>(), TileSizes<1, 2, 4>());

}  // namespace heddle::kernels::cpu
