// Primitives for the emulator. Included only by primitives.cuh, which documents them.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>

#include "kernels/dtype.h"
#include "kernels/kv_element.h"
#include "tests/emulate/elements.h"
#include "tests/emulate/emulator.h"

#define HEDDLE_KERNEL void
#define HEDDLE_DEVICE inline
#define HEDDLE_HOST_DEVICE inline
#define HEDDLE_BOUNDS(threads, blocks)
#define HEDDLE_PARAMS(type, name) const type name
#define HEDDLE_UNROLL
#define HEDDLE_UNROLL_BY(n)

namespace heddle::kernels::cuda {

inline int ThreadX() { return emulate::Current().thread; }
inline int ThreadCount() { return emulate::Current().threads; }
inline int BlockX() { return emulate::Current().block.x; }
inline int BlockY() { return emulate::Current().block.y; }
inline int BlockZ() { return emulate::Current().block.z; }
inline int GridX() { return emulate::Current().grid.x; }

inline void WaitForPrevious() { emulate::WaitForPrevious(); }
inline void AllowNext() {}  // emulated launches may always be early
// Touches both ends, which must exist.
inline void PrefetchToL2(const void* from, int bytes) {
  if (reinterpret_cast<uintptr_t>(from) % 16 != 0 || bytes <= 0 || bytes % 16 != 0) {
    emulate::Report("a misaligned prefetch");
    return;
  }
  const auto* at = static_cast<const volatile char*>(from);
  static_cast<void>(at[0]), static_cast<void>(at[bytes - 1]);
}

inline void SyncThreads() { emulate::SyncThreads(); }
inline void SyncWarp() { emulate::SyncWarp(); }

// A checked view of [begin, begin + count) of shared memory.
template <typename T>
class Shared {
 public:
  Shared(T* data, int first, int count) : data_(data), first_(first), count_(count) {}

  T Get(int i) const { return GetAs<T>(i); }
  void Set(int i, T value) const { SetAs<T>(i, value); }
  template <typename V>
  V GetAs(int i) const {
    V value;
    std::memset(&value, 0xFF, sizeof(V));
    if (Check(i, sizeof(V), emulate::Access::kRead)) std::memcpy(&value, data_ + i, sizeof(V));
    return value;
  }
  template <typename V>
  void SetAs(int i, V value) const {
    if (Check(i, sizeof(V), emulate::Access::kWrite)) std::memcpy(data_ + i, &value, sizeof(V));
  }
  T AtomicAdd(int i, T value) const {
    if (!Check(i, sizeof(T), emulate::Access::kAtomic)) return T();
    T before = data_[i];
    data_[i] = before + value;
    return before;
  }
  Shared<T> From(int i) const { return Shared<T>(data_ + i, first_ - i, count_); }
  T* raw(int i) const { return data_ + i; }
  // Checks against the piece that Take returned, not only against the block's memory.
  bool Check(int i, size_t bytes, emulate::Access access) const {
    int64_t elements = static_cast<int64_t>((bytes + sizeof(T) - 1) / sizeof(T));
    if (i < first_ || i + elements > first_ + count_) {
      emulate::Report("an index is outside of its array in shared memory");
      return false;
    }
    return emulate::CheckShared(data_ + i, static_cast<int>(bytes), access);
  }

 private:
  T* data_;
  int first_;  // index of the piece's first element, <= 0
  int count_;
};

template <typename T>
Shared<T> SharedPiece(int offset, int count) {
  return Shared<T>(reinterpret_cast<T*>(emulate::SharedBase() + offset), 0, count);
}

namespace emulate {

template <typename T>
T FromLane(const char* deposits, int lane) {
  T value;
  std::memcpy(&value, deposits + 64 * lane, sizeof(T));
  return value;
}

inline int MyLane() { return Current().thread % kWarpLanes; }

inline float Element(uint32_t pair, int high, BFloat16) {
  return ValueOfBF16(static_cast<uint16_t>(high ? pair >> 16 : pair));
}
inline float Element(uint32_t pair, int high, Half) {
  return ValueOfF16(static_cast<uint16_t>(high ? pair >> 16 : pair));
}

template <typename T>
void LoadMatrix(const char* kind, uint32_t (&out)[4], Shared<T> rows, int i, bool transposed) {
  struct Row {
    Shared<T> rows;
    int i;
  };
  const Row mine{rows, i};
  if (reinterpret_cast<uintptr_t>(rows.raw(i)) % 16 != 0) Report("a misaligned matrix row");
  const char* deposits = Exchange(kind, &mine, sizeof(mine));
  const int lane = MyLane();
  for (int m = 0; m < 4; ++m) {
    constexpr int kPerColumn = 2 / sizeof(T);
    const auto from = [&](int row) {
      return *reinterpret_cast<const Row*>(deposits + 64 * (8 * m + row));
    };
    if (!transposed) {
      const Row own = from(lane / 4);
      out[m] = own.rows.template GetAs<uint32_t>(own.i + 2 * (lane % 4) * kPerColumn);
      continue;
    }
    const Row low = from(2 * (lane % 4)), high = from(2 * (lane % 4) + 1);
    out[m] =
        low.rows.template GetAs<uint16_t>(low.i + lane / 4 * kPerColumn) |
        static_cast<uint32_t>(high.rows.template GetAs<uint16_t>(high.i + lane / 4 * kPerColumn))
            << 16;
  }
}

// A lane's fragments, and behind them its part of the products.
struct MmaDeposit {
  uint32_t a[4];
  uint32_t b[2];
  float sums[4];
  bool is_done;  // lane 0's alone
};

// The products of all lanes: the columns side by side, each sum in the order of its 16 terms.
template <typename T>
void MultiplyFragments(char* deposits, T type) {
  const auto word = [deposits](int lane, size_t offset) {
    uint32_t pair;
    std::memcpy(&pair, deposits + 64 * lane + offset, 4);
    return pair;
  };
  float a[16][16], b[16][8];
  for (int g = 0; g < 8; ++g) {
    for (int k = 0; k < 16; k += 2) {
      const int lane = g * 4 + k % 8 / 2;
      const uint32_t upper = word(lane, offsetof(MmaDeposit, a) + 8 * (k / 8));
      const uint32_t lower = word(lane, offsetof(MmaDeposit, a) + 8 * (k / 8) + 4);
      const uint32_t column = word(lane, offsetof(MmaDeposit, b) + 4 * (k / 8));
      for (int h = 0; h < 2; ++h) {
        a[g][k + h] = Element(upper, h, type);
        a[g + 8][k + h] = Element(lower, h, type);
        b[k + h][g] = Element(column, h, type);
      }
    }
  }
  for (int row = 0; row < 16; ++row) {
    float sums[8] = {};
    for (int k = 0; k < 16; ++k) {
      for (int n = 0; n < 8; ++n) sums[n] += a[row][k] * b[k][n];
    }
    for (int n = 0; n < 8; n += 2) {
      char* const to = deposits + 64 * (row % 8 * 4 + n / 2) + offsetof(MmaDeposit, sums);
      std::memcpy(to + 8 * (row / 8), sums + n, 8);
    }
  }
}

// The first lane that goes on multiplies for all.
template <typename T>
void Mma(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], T type) {
  const MmaDeposit mine = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}, {}, false};
  char* const deposits = Exchange("Mma16816", &mine, sizeof(mine));
  bool is_done;
  std::memcpy(&is_done, deposits + offsetof(MmaDeposit, is_done), sizeof(is_done));
  if (!is_done) {
    MultiplyFragments(deposits, type);
    is_done = true;
    std::memcpy(deposits + offsetof(MmaDeposit, is_done), &is_done, sizeof(is_done));
  }
  const auto own = FromLane<MmaDeposit>(deposits, MyLane());
  for (int e = 0; e < 4; ++e) c[e] += own.sums[e];
}

}  // namespace emulate

template <typename T>
T ShuffleXor(T value, int mask) {
  return emulate::FromLane<T>(emulate::Exchange("ShuffleXor", &value, sizeof(T)),
                              emulate::MyLane() ^ mask);
}
template <typename T>
T ShuffleUp(T value, int delta) {
  const char* deposits = emulate::Exchange("ShuffleUp", &value, sizeof(T));
  int lane = emulate::MyLane();
  return emulate::FromLane<T>(deposits, lane < delta ? lane : lane - delta);
}
template <typename T>
T Shuffle(T value, int lane) {
  return emulate::FromLane<T>(emulate::Exchange("Shuffle", &value, sizeof(T)), lane & 31);
}
inline uint32_t Ballot(bool value) {
  const char* deposits = emulate::Exchange("Ballot", &value, sizeof(value));
  uint32_t bits = 0;
  for (int lane = 0; lane < 32; ++lane) {
    bits |= static_cast<uint32_t>(emulate::FromLane<bool>(deposits, lane)) << lane;
  }
  return bits;
}
inline int PopCount(uint32_t bits) { return std::popcount(bits); }
inline uint32_t WarpMaximum(uint32_t value) {
  const char* deposits = emulate::Exchange("WarpMaximum", &value, sizeof(value));
  for (int lane = 0; lane < 32; ++lane) {
    value = std::max(value, emulate::FromLane<uint32_t>(deposits, lane));
  }
  return value;
}
inline uint32_t WarpMinimum(uint32_t value) { return ~WarpMaximum(~value); }

template <typename T>
void CopyAsync16(Shared<T> to, int i, const void* from, bool valid) {
  if (valid && reinterpret_cast<uintptr_t>(from) % 16 != 0) emulate::Report("a misaligned copy");
  if (to.Check(i, 16, emulate::Access::kWrite)) {
    emulate::CopyAsync(to.raw(i), valid ? from : nullptr, 16);
  }
}
template <typename T>
void CopyAsync4(Shared<T> to, int i, const void* from, bool valid) {
  if (valid && reinterpret_cast<uintptr_t>(from) % 4 != 0) emulate::Report("a misaligned copy");
  if (to.Check(i, 4, emulate::Access::kWrite)) {
    emulate::CopyAsync(to.raw(i), valid ? from : nullptr, 4);
  }
}
inline void CopyAsyncCommit() { emulate::CopyAsyncCommit(); }
template <int kGroupsLeft>
void CopyAsyncWait() {
  emulate::CopyAsyncWait(kGroupsLeft);
}

template <typename T>
void LoadMatrix4(uint32_t (&out)[4], Shared<T> rows, int i) {
  emulate::LoadMatrix("LoadMatrix4", out, rows, i, false);
}
template <typename T>
void LoadMatrix4Transposed(uint32_t (&out)[4], Shared<T> rows, int i) {
  emulate::LoadMatrix("LoadMatrix4Transposed", out, rows, i, true);
}
inline void Mma16816(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], BFloat16 t) {
  emulate::Mma(c, a, b, t);
}
inline void Mma16816(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Half t) {
  emulate::Mma(c, a, b, t);
}

inline Vec16 LoadStreaming16(const void* from) {
  if (reinterpret_cast<uintptr_t>(from) % 16 != 0) emulate::Report("a misaligned 16-byte load");
  Vec16 v;
  std::memcpy(&v, from, sizeof(v));
  return v;
}

inline int32_t AtomicAddGlobal(int32_t* at, int32_t value) {
  const int32_t before = *at;
  *at += value;
  return before;
}
inline void FenceDevice() {}
inline float LoadFresh(const float* from) { return *from; }
inline Vec16 LoadStreamingAhead16(const void* from) { return LoadStreaming16(from); }
inline Vec16 LoadFresh16(const void* from) { return LoadStreaming16(from); }
inline void StoreGlobal16(void* to, const Vec16& v) { *static_cast<Vec16*>(to) = v; }

inline float BitsToFloat(uint32_t bits) { return std::bit_cast<float>(bits); }
inline uint32_t FloatToBits(float value) { return std::bit_cast<uint32_t>(value); }
inline float ToFloat(float value) { return value; }
inline float ToFloat(BFloat16 value) { return emulate::ValueOfBF16(value.bits); }
inline float ToFloat(Half value) { return emulate::ValueOfF16(value.bits); }
inline float ToFloat(Float8 value) { return emulate::ValueOfF8(value.bits); }
inline float ToFloat(Int8 value) { return static_cast<float>(value.code); }
inline float RoundTo(float value, float) { return value; }
inline BFloat16 RoundTo(float value, BFloat16) { return {emulate::RoundToBF16(value)}; }
inline Half RoundTo(float value, Half) { return {F32ToF16(value)}; }
inline Float8 RoundTo(float value, Float8) { return {F32ToF8E4M3(value)}; }
inline float RoundToInteger(float value) { return std::nearbyint(value); }
inline uint32_t Pack2(float low, float high, BFloat16) {
  return emulate::RoundToBF16(low) | static_cast<uint32_t>(emulate::RoundToBF16(high)) << 16;
}
inline uint32_t Pack2(float low, float high, Half) {
  return F32ToF16(low) | static_cast<uint32_t>(F32ToF16(high)) << 16;
}

inline uint32_t SubtractPairs(uint32_t a, uint32_t b, BFloat16 t) {
  return Pack2(emulate::Element(a, 0, t) - emulate::Element(b, 0, t),
               emulate::Element(a, 1, t) - emulate::Element(b, 1, t), t);
}

inline uint32_t MultiplyPairs(uint32_t a, uint32_t b, BFloat16 t) {
  return Pack2(emulate::Element(a, 0, t) * emulate::Element(b, 0, t),
               emulate::Element(a, 1, t) * emulate::Element(b, 1, t), t);
}

inline uint32_t MaskOr(uint32_t word, uint32_t mask, uint32_t bits) { return (word & mask) | bits; }
inline uint32_t BytePermute(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t both = a | static_cast<uint64_t>(b) << 32;
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t from = (selector >> (4 * i)) & 15;
    if (from > 7) emulate::Report("a byte selector that replicates signs");
    out |= static_cast<uint32_t>((both >> (8 * (from & 7))) & 255) << (8 * i);
  }
  return out;
}

inline uint32_t HalvesOfF8(uint32_t codes) {
  return Pack2(emulate::ValueOfF8(static_cast<uint8_t>(codes)),
               emulate::ValueOfF8(static_cast<uint8_t>(codes >> 8)), Half());
}

inline float Abs(float x) { return std::fabs(x); }
inline float Max(float a, float b) { return std::fmax(a, b); }
inline float Exp2(float x) { return std::exp2(x); }
inline float Exp(float x) { return std::exp(x); }
inline float DivideFast(float x, float y) { return y > 0x1p126f ? 0.0f : x / y; }
inline double ExpF64(double x) { return std::exp(x); }
inline float Log(float x) { return std::log(x); }
inline float Log2(float x) { return std::log2(x); }
inline float Tanh(float x) { return std::tanh(x); }
inline float Erfc(float x) { return std::erfc(x); }
inline float Rsqrt(float x) { return 1.0f / std::sqrt(x); }
inline void SinCos(double x, double* sin, double* cos) {
  *sin = std::sin(x);
  *cos = std::cos(x);
}
inline bool IsNan(float x) { return std::isnan(x); }
inline float Infinity() { return std::numeric_limits<float>::infinity(); }

namespace emulate {

struct Combined {
  float value;
  float all = 0;
  bool is_known = false;
};

// What exchanges between lanes 16, 8, 4, 2 and 1 apart bring each of them, since fn(a, b) is fn(b,
// a). Most of the emulator's time would be switching between lanes. The first lane that goes on
// leaves it in lane 0's deposit.
template <typename Fn>
float Combine(const char* kind, float value, Fn fn) {
  const Combined mine = {value};
  char* deposits = Exchange(kind, &mine, sizeof(mine));
  auto first = FromLane<Combined>(deposits, 0);
  if (first.is_known) return first.all;
  float all[kWarpLanes];
  for (int lane = 0; lane < kWarpLanes; ++lane)
    all[lane] = FromLane<Combined>(deposits, lane).value;
  for (int mask = kWarpLanes / 2; mask > 0; mask /= 2) {
    for (int lane = 0; lane < mask; ++lane) all[lane] = fn(all[lane], all[lane + mask]);
  }
  first.all = all[0];
  first.is_known = true;
  std::memcpy(deposits, &first, sizeof(first));
  return all[0];
}

}  // namespace emulate

inline float WarpSum(float value) {
  return emulate::Combine("WarpSum", value, [](float a, float b) { return a + b; });
}
inline float WarpMax(float value) {
  return emulate::Combine("WarpMax", value, [](float a, float b) { return Max(a, b); });
}

}  // namespace heddle::kernels::cuda
