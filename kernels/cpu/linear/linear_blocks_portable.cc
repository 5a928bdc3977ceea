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
inline ByteVec Lookup(ByteVec table, ByteVec indices) {
  ByteVec out;
  for (int i = 0; i < 16; ++i) out[i] = table[indices[i]];
  return out;
}
inline IntSums SetInts(int32_t x) { return IntSums{x, x, x, x}; }
inline Vec ToFloat(IntSums v) { return __builtin_convertvector(v, Vec); }
inline IntSums IntsFromInt8(const int8_t* p) { return IntSums{p[0], p[1], p[2], p[3]}; }
inline IntSums IntsFromUint8(const uint8_t* p) { return IntSums{p[0], p[1], p[2], p[3]}; }
inline IntSums DotAdd16(IntSums sum, IntSums w, int32_t x) {
  int16_t values[2], weights[2 * kLanes];
  std::memcpy(values, &x, sizeof(values));
  std::memcpy(weights, &w, sizeof(weights));
  for (int r = 0; r < kLanes; ++r) {
    sum[r] += weights[2 * r] * values[0] + weights[2 * r + 1] * values[1];
  }
  return sum;
}
template <bool kSigned>
inline IntSums DotAdd(IntSums sum, ByteVec w, const int8_t* x) {
  for (int r = 0; r < kLanes; ++r) {
    for (int j = 0; j < 4; ++j) {
      int32_t value = kSigned ? static_cast<int8_t>(w[r * 4 + j]) : w[r * 4 + j];
      sum[r] += value * x[j];
    }
  }
  return sum;
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
