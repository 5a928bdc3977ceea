// Ops on single rows, on Vec: norms, rotation, conversion for the KV cache, logits, adapters.
// REQUIRES: one of the vec_*.h headers and vec_math.h included before this one.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/adapter_rows.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/vec/vec_kv.h"
#include "kernels/cpu/vec/vec_tail.h"

namespace heddle::kernels::cpu {
namespace {

inline float Sum(const float* x, int64_t n) {
  Vec sum = Zero();
  for (int64_t i = 0; i < n; i += kLanes) sum = sum + LoadUpTo(x + i, LanesAt(i, n));
  return ReduceAdd(sum);
}

// Sum of (x - mean)^2.
inline float SumSquares(const float* x, int64_t n, float mean) {
  Vec sum = Zero();
  Vec center = Set(mean);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Vec d = Load(x + i) - center;
    sum = Fma(d, d, sum);
  }
  float total = ReduceAdd(sum);
  for (; i < n; ++i) total += (x[i] - mean) * (x[i] - mean);
  return total;
}

inline float InverseRoot(float mean_square, float eps) {
  return 1.0f / __builtin_sqrtf(mean_square + eps);
}

inline void NormRow(const NormRowArgs& args) {
  const float* x = args.x;
  int64_t n = args.dim;
  if (args.residual) {
    for (int64_t i = 0; i < n; i += kLanes) {
      int lanes = LanesAt(i, n);
      Vec sum = LoadUpTo(args.residual + i, lanes) + LoadUpTo(x + i, lanes);
      StoreUpTo(args.residual + i, sum, lanes);
    }
    x = args.residual;
  }
  auto count = static_cast<float>(n);
  float mean = args.layer ? Sum(x, n) / count : 0.0f;
  Vec center = Set(mean);
  Vec scale = Set(InverseRoot(SumSquares(x, n, mean) / count, args.eps));
  Vec offset = Set(args.weight_offset);
  for (int64_t i = 0; i < n; i += kLanes) {
    int lanes = LanesAt(i, n);
    Vec y = (LoadUpTo(x + i, lanes) - center) * scale;
    if (args.weight) y = y * (LoadUpTo(args.weight + i, lanes) + offset);
    if (args.bias) y = y + LoadUpTo(args.bias + i, lanes);
    StoreUpTo(args.out + i, y, lanes);
  }
}

// Rotates pairs (i, i + half).
inline void RotateHalf(const float* cos, const float* sin, int32_t half, float* head) {
  for (int32_t i = 0; i < half; i += kLanes) {
    int lanes = LanesAt(i, half);
    Vec a = LoadUpTo(head + i, lanes);
    Vec b = LoadUpTo(head + half + i, lanes);
    Vec c = LoadUpTo(cos + i, lanes);
    Vec s = LoadUpTo(sin + i, lanes);
    StoreUpTo(head + i, a * c - b * s, lanes);
    StoreUpTo(head + half + i, b * c + a * s, lanes);
  }
}

// Rotates pairs (2i, 2i + 1).
inline void RotateInterleaved(const float* cos, const float* sin, int32_t half, float* head) {
  for (int32_t i = 0; i < half; ++i) {
    float a = head[2 * i];
    float b = head[2 * i + 1];
    head[2 * i] = a * cos[i] - b * sin[i];
    head[2 * i + 1] = b * cos[i] + a * sin[i];
  }
}

inline void RotateHeads(const RotateArgs& args) {
  int32_t half = args.rotary_dim / 2;
  for (int32_t h = 0; h < args.n_heads; ++h) {
    float* head = args.heads + static_cast<int64_t>(h) * args.head_dim;
    if (args.norm) {
      NormRow({head, nullptr, args.norm, nullptr, args.norm_eps, args.norm_weight_offset, false,
               args.head_dim, head});
    }
    if (!args.cos_sin) continue;
    auto* rotate = args.interleaved ? RotateInterleaved : RotateHalf;
    rotate(args.cos_sin, args.cos_sin + half, half, head);
  }
}

// Applies `convert` to all vectors of x, with a buffer for the last, partial one.
template <typename T, typename Convert>
inline void ConvertRow(const float* x, int32_t n, T* out, const Convert& convert) {
  for (int32_t i = 0; i < n; i += kLanes) {
    int lanes = LanesAt(i, n);
    T vector[kLanes];
    convert(lanes == kLanes ? out + i : vector, LoadUpTo(x + i, lanes));
    if (lanes < kLanes) std::memcpy(out + i, vector, static_cast<size_t>(lanes) * sizeof(T));
  }
}

inline void ToScaledInt8(const float* x, int32_t n, int8_t* out, void* scale_out) {
  Vec largest = Zero();
  Vec poison = Zero();  // NaN if x is not finite
  for (int32_t i = 0; i < n; i += kLanes) {
    Vec v = LoadUpTo(x + i, LanesAt(i, n));
    largest = Max(Abs(v), largest);
    poison = poison + v * Zero();
  }
  const float max = ReduceMax(largest);
  const float scale = (max < 0x1p-100f ? 0.0f : max / 127.0f) + ReduceAdd(poison);
  const Vec inverse = Set(scale > 0 ? 1.0f / scale : 0.0f);
  const IntVec valid = Set(scale) == Set(scale);
  ConvertRow(x, n, out, [&](int8_t* to, Vec v) {
    const Vec magic = Set(0x1.8p23f);  // adding it rounds to an integer, to nearest even
    Vec code = Max(Min((v * inverse + magic) - magic, Set(127.0f)), Set(-127.0f));
    ToInt8(to, Select(valid, code, Zero()));
  });
  std::memcpy(scale_out, &scale, sizeof(scale));
}

inline void ToKv(KvType type, const float* x, int32_t n, void* out, void* scale) {
  if (type == KvType::kInt8) {
    ToScaledInt8(x, n, static_cast<int8_t*>(out), scale);
    return;
  }
  if (type == KvType::kF8E4M3) {
    ConvertRow(x, n, static_cast<uint8_t*>(out), ToF8E4M3);
    return;
  }
  if (type == KvType::kF32) {
    std::memcpy(out, x, static_cast<size_t>(n) * sizeof(float));
    return;
  }
  ConvertRow(x, n, static_cast<uint16_t*>(out), type == KvType::kF16 ? ToF16 : ToBF16);
}

inline void ScaleRow(float* x, int64_t n, float scale, float softcap) {
  for (int64_t i = 0; i < n; i += kLanes) {
    int lanes = LanesAt(i, n);
    Vec y = LoadUpTo(x + i, lanes) * Set(scale);
    if (softcap > 0) y = Tanh(y / Set(softcap)) * Set(softcap);
    StoreUpTo(x + i, y, lanes);
  }
}

inline float CopyLogits(const float* x, int64_t n, float* out) {
  const Vec lowest = Set(-__builtin_inff());
  Vec max = lowest;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Vec y = Load(x + i);
    y = Select(y != y, lowest, y);
    max = Max(max, y);
    Store(out + i, y);
  }
  float best = ReduceMax(max);
  for (; i < n; ++i) {
    out[i] = x[i] != x[i] ? -__builtin_inff() : x[i];
    best = out[i] > best ? out[i] : best;
  }
  return best;
}

// Sums in F32 per lane over ranges that keep the relative error at a few units, and in F64 over the
// ranges.
inline double ExpSum(const float* x, int64_t n, float max, float inv_temperature, float* out) {
  constexpr int64_t kStretch = 64 * kLanes;
  const Vec center = Set(max);
  const Vec factor = Set(inv_temperature);
  double total = 0;
  for (int64_t begin = 0; begin < n; begin += kStretch) {
    int64_t end = begin + kStretch < n ? begin + kStretch : n;
    Vec sum = Zero();
    for (int64_t i = begin; i < end; i += kLanes) {
      int lanes = LanesAt(i, end);
      Vec y = Exp((LoadUpTo(x + i, lanes) - center) * factor);
      if (lanes < kLanes) {  // the missing lanes' exp(-max) must not be added
        float values[kLanes] = {};
        StoreN(values, y, lanes);
        y = Load(values);
      }
      sum = sum + y;
      if (out) StoreUpTo(out + i, y, lanes);
    }
    total += ReduceAdd(sum);
  }
  return total;
}

// `lanes` elements from i on of the sum over the tree.
inline Vec TreeSum(const float* const* parts, int32_t n, int64_t i, int lanes) {
  if (n == 1) return LoadUpTo(parts[0] + i, lanes);
  int32_t half = 1;
  while (2 * half < n) half *= 2;
  return TreeSum(parts, half, i, lanes) + TreeSum(parts + half, n - half, i, lanes);
}

inline void SumParts(const SumPartsArgs& args) {
  for (int64_t i = 0; i < args.dim; i += kLanes) {
    const int lanes = LanesAt(i, args.dim);
    Vec sum = Zero();
    if (args.num_parts == 2) {
      sum = LoadUpTo(args.parts[0] + i, lanes) + LoadUpTo(args.parts[1] + i, lanes);
    } else if (args.num_parts > 0) {
      sum = TreeSum(args.parts, args.num_parts, i, lanes);
    }
    if (args.bias) sum = sum + LoadUpTo(args.bias + i, lanes);
    if (args.add) sum = LoadUpTo(args.out + i, lanes) + sum;
    StoreUpTo(args.out + i, sum, lanes);
  }
}

inline void MultiplyRow(const float* a, const float* b, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const int lanes = LanesAt(i, n);
    StoreUpTo(out + i, LoadUpTo(a + i, lanes) * LoadUpTo(b + i, lanes), lanes);
  }
}

inline void ConvRow(const ConvRowArgs& args) {
  for (int64_t i = 0; i < args.dim; i += kLanes) {
    const int lanes = LanesAt(i, args.dim);
    Vec sum = args.bias ? LoadUpTo(args.bias + i, lanes) : Zero();
    for (int32_t j = 0; j < args.taps; ++j) {
      if (!args.inputs[j]) continue;
      sum = Fma(LoadUpTo(args.weight + j * args.dim + i, lanes),
                LoadUpTo(args.inputs[j] + i, lanes), sum);
    }
    StoreUpTo(args.out + i, sum * LoadUpTo(args.gate + i, lanes), lanes);
  }
}

constexpr RowKernels kRowKernels = {NormRow,    RotateHeads, ToKv,          ScaleRow,
                                    CopyLogits, ExpSum,      AdapterShrink, AdapterExpand,
                                    SumParts,   MultiplyRow, ConvRow};

}  // namespace
}  // namespace heddle::kernels::cpu
