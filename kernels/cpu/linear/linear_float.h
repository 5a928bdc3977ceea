// Panels of F32, F16 and BF16 weights, on Vec. All arithmetic is F32 with one Fma per product, in
// order of k.
// REQUIRES: one of the vec_*.h headers and vec_math.h included before this one.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/kernel_table.h"

namespace heddle::kernels::cpu {
namespace {

constexpr int32_t kPanelRows = 2 * kLanes;  // two vectors: enough chains to hide Fma's latency

inline int64_t RoundUp64(int64_t bytes) { return (bytes + 63) / 64 * 64; }

inline void PrepareFloatTile(const float* x, int64_t stride, int32_t rows, int32_t tile_rows,
                             int64_t cols, void* tile) {
  auto* out = static_cast<float*>(tile);
  for (int32_t m = 0; m < tile_rows; ++m) {
    const float* row = x + m * stride;
    for (int64_t k = 0; k < cols; ++k) out[k * tile_rows + m] = m < rows ? row[k] : 0.0f;
  }
}

// The prefetches of a product, spread over its steps. kLines: at each of them, as many as there are
// cache lines in the weights of a step, so that they suffice if all of them are prefetched; 0: as
// many as are needed, which takes a loop, and into L2, since L1 holds expanded weights.
template <int kLines>
class Prefetches {
 public:
  Prefetches(WeightsAhead ahead, int64_t steps)
      : at_(ahead.at), step_bytes_((ahead.bytes + steps - 1) / steps) {}

  void Next() {
    if constexpr (kLines > 0) {
#pragma GCC unroll 16
      for (int i = 0; i < kLines; ++i) __builtin_prefetch(at_ + i * 64);
    } else {
      for (int64_t i = 0; i < step_bytes_; i += 64) __builtin_prefetch(at_ + i, 0, 2);
    }
    at_ += step_bytes_;
  }

 private:
  const uint8_t* at_;
  int64_t step_bytes_;
};

constexpr int LinesOf(int64_t bytes) { return static_cast<int>((bytes + 63) / 64); }

template <int kRows>
struct Accumulators {
  Vec sums[kRows][2];

  void Start(const float* acc) {
#pragma GCC unroll 12
    for (int m = 0; m < kRows; ++m) {
      sums[m][0] = Load(acc + m * kPanelRows);
      sums[m][1] = Load(acc + m * kPanelRows + kLanes);
    }
  }
  void Clear() {
#pragma GCC unroll 12
    for (int m = 0; m < kRows; ++m) sums[m][0] = sums[m][1] = Zero();
  }
  // Adds one column: `x` holds kRows values.
  void Step(Vec w0, Vec w1, const float* x) {
#pragma GCC unroll 12
    for (int m = 0; m < kRows; ++m) {
      Vec value = Set(x[m]);
      sums[m][0] = Fma(w0, value, sums[m][0]);
      sums[m][1] = Fma(w1, value, sums[m][1]);
    }
  }
  void Save(float* acc) const {
#pragma GCC unroll 12
    for (int m = 0; m < kRows; ++m) {
      Store(acc + m * kPanelRows, sums[m][0]);
      Store(acc + m * kPanelRows + kLanes, sums[m][1]);
    }
  }
  // Adds the sums times w0 and w1 to acc.
  void AddTimes(Vec w0, Vec w1, float* acc) const {
#pragma GCC unroll 12
    for (int m = 0; m < kRows; ++m, acc += kPanelRows) {
      Store(acc, Fma(sums[m][0], w0, Load(acc)));
      Store(acc + kLanes, Fma(sums[m][1], w1, Load(acc + kLanes)));
    }
  }
};

// [cols][kPanelRows] F32.
struct F32Panel {
  static int64_t Bytes(int64_t cols) { return RoundUp64(cols * kPanelRows * 4); }
  static void Pack(const void* source, int64_t row_bytes, int32_t rows, int64_t cols, void* panel) {
    std::memset(panel, 0, static_cast<size_t>(Bytes(cols)));
    auto* out = static_cast<char*>(panel);
    for (int32_t r = 0; r < rows; ++r) {
      const char* row = static_cast<const char*>(source) + r * row_bytes;
      for (int64_t k = 0; k < cols; ++k)
        std::memcpy(out + (k * kPanelRows + r) * 4, row + k * 4, 4);
    }
  }
  static void Unpack(const void* panel, int32_t row, int64_t cols, float* out) {
    const auto* w = static_cast<const float*>(panel);
    for (int64_t k = 0; k < cols; ++k) out[k] = w[k * kPanelRows + row];
  }
  template <int kRows>
  static void Multiply(const void* panel, const void* tile, int64_t cols, float* acc,
                       WeightsAhead weights_ahead) {
    const auto* w = static_cast<const float*>(panel);
    const auto* x = static_cast<const float*>(tile);
    Accumulators<kRows> sums;
    sums.Start(acc);
    Prefetches<LinesOf(kPanelRows * 4)> ahead(weights_ahead, cols);
    for (int64_t k = 0; k < cols; ++k, w += kPanelRows, x += kRows) {
      ahead.Next();
      sums.Step(Load(w), Load(w + kLanes), x);
    }
    sums.Save(acc);
  }
};

// [cols][kPanelRows] F16.
struct F16Panel {
  static int64_t Bytes(int64_t cols) { return RoundUp64(cols * kPanelRows * 2); }
  static void Pack(const void* source, int64_t row_bytes, int32_t rows, int64_t cols, void* panel) {
    std::memset(panel, 0, static_cast<size_t>(Bytes(cols)));
    auto* out = static_cast<char*>(panel);
    for (int32_t r = 0; r < rows; ++r) {
      const char* row = static_cast<const char*>(source) + r * row_bytes;
      for (int64_t k = 0; k < cols; ++k)
        std::memcpy(out + (k * kPanelRows + r) * 2, row + k * 2, 2);
    }
  }
  static void Unpack(const void* panel, int32_t row, int64_t cols, float* out) {
    const auto* w = static_cast<const uint16_t*>(panel);
    for (int64_t k = 0; k < cols; ++k) {
      uint16_t halves[kLanes] = {w[k * kPanelRows + row]};
      float values[kLanes];
      Store(values, FromF16(halves));
      out[k] = values[0];
    }
  }
  template <int kRows>
  static void Multiply(const void* panel, const void* tile, int64_t cols, float* acc,
                       WeightsAhead weights_ahead) {
    const auto* w = static_cast<const uint16_t*>(panel);
    const auto* x = static_cast<const float*>(tile);
    Accumulators<kRows> sums;
    sums.Start(acc);
    Prefetches<LinesOf(kPanelRows * 2)> ahead(weights_ahead, cols);
    for (int64_t k = 0; k < cols; ++k, w += kPanelRows, x += kRows) {
      ahead.Next();
      sums.Step(FromF16(w), FromF16(w + kLanes), x);
    }
    sums.Save(acc);
  }
};

// [cols / 2][kPanelRows][2] BF16: a 32-bit lane holds two neighbouring columns of a row, so that
// one shift or mask makes an F32 vector of either, and dot-product instructions can use it.
struct BF16Panel {
  static int64_t Bytes(int64_t cols) { return RoundUp64((cols + 1) / 2 * kPanelRows * 4); }
  static void Pack(const void* source, int64_t row_bytes, int32_t rows, int64_t cols, void* panel) {
    std::memset(panel, 0, static_cast<size_t>(Bytes(cols)));
    auto* out = static_cast<char*>(panel);
    for (int32_t r = 0; r < rows; ++r) {
      const char* row = static_cast<const char*>(source) + r * row_bytes;
      for (int64_t p = 0; p < cols / 2; ++p) {
        std::memcpy(out + (p * kPanelRows + r) * 4, row + p * 4, 4);
      }
      if (cols % 2 != 0) {
        std::memcpy(out + (cols / 2 * kPanelRows + r) * 4, row + (cols - 1) * 2, 2);
      }
    }
  }
  static void Unpack(const void* panel, int32_t row, int64_t cols, float* out) {
    const auto* w = static_cast<const uint16_t*>(panel);
    for (int64_t k = 0; k < cols; ++k) {
      uint32_t bits = static_cast<uint32_t>(w[(k / 2 * kPanelRows + row) * 2 + k % 2]) << 16;
      std::memcpy(out + k, &bits, 4);
    }
  }
  static Vec Even(const int32_t* w) {
    IntVec bits;
    std::memcpy(&bits, w, sizeof(bits));
    return FromBits(bits << 16);
  }
  static Vec Odd(const int32_t* w) {
    IntVec bits;
    std::memcpy(&bits, w, sizeof(bits));
    return FromBits(bits & static_cast<int32_t>(0xffff0000));
  }
  template <int kRows>
  static void Multiply(const void* panel, const void* tile, int64_t cols, float* acc,
                       WeightsAhead weights_ahead) {
    const auto* w = static_cast<const int32_t*>(panel);
    const auto* x = static_cast<const float*>(tile);
    Accumulators<kRows> sums;
    sums.Start(acc);
    Prefetches<LinesOf(kPanelRows * 4)> ahead(weights_ahead, (cols + 1) / 2);
    for (int64_t p = 0; p < cols / 2; ++p, w += kPanelRows, x += 2 * kRows) {
      ahead.Next();
      sums.Step(Even(w), Even(w + kLanes), x);
      sums.Step(Odd(w), Odd(w + kLanes), x + kRows);
    }
    if (cols % 2 != 0) sums.Step(Even(w), Even(w + kLanes), x);
    sums.Save(acc);
  }
};

inline Vec Activate(ActivationCode code, Vec x) {
  switch (code) {
    case ActivationCode::kNone:
      return x;
    case ActivationCode::kSilu:
      return x * Sigmoid(x);
    case ActivationCode::kGelu:
      return x * NormalCdf(x);
    case ActivationCode::kGeluTanh: {  // 1 + tanh(u) = 2 sigmoid(2u); 2 sqrt(2 / pi) = 1.5957691
      Vec cubic = Fma(x * x, Set(0.044715f), Set(1.0f)) * x;
      return x * Sigmoid(cubic * Set(1.5957691f));
    }
    case ActivationCode::kRelu:
      return Select(x < Zero(), Zero(), x);
    case ActivationCode::kRelu2: {
      Vec positive = Select(x < Zero(), Zero(), x);
      return positive * positive;
    }
    case ActivationCode::kClampedSwiglu:
      return x;  // Gate multiplies
  }
  return x;
}

inline Vec Gate(ActivationCode code, Vec gate, Vec up) {
  if (code != ActivationCode::kClampedSwiglu) return Activate(code, gate) * up;
  const Vec g = Min(gate, Set(7.0f));
  const Vec u = Max(Min(up, Set(7.0f)), Set(-7.0f));
  return g * Sigmoid(g * Set(1.702f)) * (u + Set(1.0f));
}

// Outputs [c, c + n) of row m, without what is there already.
inline Vec OutputOf(const EpilogueArgs& args, int32_t m, int32_t c, int32_t n) {
  Vec y = Load(args.acc + m * kPanelRows + c);
  if (args.bias) y = y + (n == kLanes ? Load(args.bias + c) : LoadN(args.bias + c, n));
  if (args.acc_up) {
    Vec up = Load(args.acc_up + m * kPanelRows + c);
    if (args.bias_up) up = up + (n == kLanes ? Load(args.bias_up + c) : LoadN(args.bias_up + c, n));
    return Gate(args.activation, y, up);
  }
  return Activate(args.activation, y);
}

inline void FinishVector(const EpilogueArgs& args, int32_t m, int32_t c, int32_t n) {
  Vec y = OutputOf(args, m, c, n);
  float* out = args.out + m * args.out_stride + c;
  if (args.add) y = y + (n == kLanes ? Load(out) : LoadN(out, n));
  if (n == kLanes) {
    Store(out, y);
  } else {
    StoreN(out, y, n);
  }
}

inline void FinishPanel(const EpilogueArgs& args) {
  const EpilogueArgs own = args;  // which no store can change
  for (int32_t m = 0; m < own.rows; ++m) {
    for (int32_t c = 0; c < own.cols; c += kLanes) {
      FinishVector(own, m, c, own.cols - c < kLanes ? own.cols - c : kLanes);
    }
  }
}

inline void JoinSums(int64_t count, float* newest, float* before) {
  for (int64_t i = 0; i < count; i += kLanes) {
    Store(before + i, Load(before + i) + Load(newest + i));
    Store(newest + i, Zero());
  }
}

// A format whose panels can be expanded. Layout: Bytes, Pack and Unpack of panels; Panel: Multiply
// with Packed or Expanded blocks, ExpandedBytes and Expand.
template <typename Layout, typename Panel, typename Packed, typename Expanded, int... kSizes>
constexpr FormatKernels MakeExpandable(TileKind tile, int32_t expand_tiles) {
  return {tile,
          Layout::Bytes,
          Layout::Pack,
          Layout::Unpack,
          {Panel::template Multiply<kSizes, Packed>...},
          expand_tiles,
          Panel::ExpandedBytes,
          Panel::Expand,
          {Panel::template Multiply<kSizes, Expanded>...}};
}

template <typename Panel, int... kSizes>
constexpr FormatKernels MakeFormat(TileKind tile) {
  return {tile, Panel::Bytes, Panel::Pack, Panel::Unpack, {Panel::template Multiply<kSizes>...}};
}

}  // namespace
}  // namespace heddle::kernels::cpu
