// The interface of an instruction set's kernels for single rows: plain types and function pointers
// only.
#pragma once

#include <cstdint>

namespace heddle::kernels::cpu {

// Element types of the KV cache, as kernels/kv_cache.h describes them, and of adapters.
enum class KvType : uint8_t { kF32, kF16, kBF16, kInt8, kF8E4M3 };

struct NormRowArgs {
  const float* x;   // [dim]
  float* residual;  // [dim] or nullptr
  const float* weight;
  const float* bias;
  float eps;
  float weight_offset;
  bool layer;  // mean and variance instead of mean square
  int64_t dim;
  float* out;
};

struct RotateArgs {
  float* heads;  // [n_heads, head_dim]
  int32_t n_heads;
  int32_t head_dim;
  const float* norm;  // [head_dim] or nullptr
  float norm_eps;
  float norm_weight_offset;
  const float* cos_sin;  // [2, rotary_dim / 2] or nullptr
  int32_t rotary_dim;
  bool interleaved;
};

// out[r * out_stride + j] = scale * the sum over i of w[j][i] * x[r][i], for rank rows j and rows
// r. The order of a sum depends on n alone. `type`: kF32, kF16 or kBF16.
struct AdapterShrinkArgs {
  KvType type;
  const void* const* w;  // [num_ranks] rows of n elements
  int32_t num_ranks;
  const float* const* x;  // [num_rows] rows of n
  int32_t num_rows;
  int64_t n;
  float scale;
  float* out;
  int64_t out_stride;
};

// out[r * out_stride + i] = the sum over j of s[r * s_stride + j] * w[j][column + i], for rows r
// and i < n. The order of a sum depends on num_ranks alone.
struct AdapterExpandArgs {
  KvType type;
  const void* const* w;  // [num_ranks]
  int32_t num_ranks;
  const float* s;
  int64_t s_stride;
  int32_t num_rows;
  int64_t column;
  int32_t n;
  float* out;
  int64_t out_stride;
};

// The sum of parts as a binary tree: the lower half of them, a power of two, and the rest first.
// out = sum + bias, or out += sum + bias.
struct SumPartsArgs {
  const float* const* parts;  // [num_parts] of [dim]
  int32_t num_parts;          // 0: the sum is 0
  const float* bias;          // [dim] or nullptr
  bool add;
  int64_t dim;
  float* out;
};

// out = gate * (bias + the sum over j of weight[j] * inputs[j]), the first term first.
struct ConvRowArgs {
  const float* const* inputs;  // [taps] of [dim]; nullptr: zeros
  const float* weight;         // [taps, dim]
  const float* bias;           // [dim] or nullptr
  const float* gate;           // [dim]
  int32_t taps;
  int64_t dim;
  float* out;
};

struct RowKernels {
  void (*norm)(const NormRowArgs& args);
  void (*rotate)(const RotateArgs& args);
  // Converts one row of the cache. `scale`, F32 at any alignment, is written for kInt8 only.
  void (*to_kv)(KvType type, const float* x, int32_t n, void* out, void* scale);
  void (*scale)(float* x, int64_t n, float scale, float softcap);  // softcap 0: none
  // Writes x to out, with NaN as -infinity; returns the maximum.
  float (*copy_logits)(const float* x, int64_t n, float* out);
  // out[i] = exp((x[i] - max) * inv_temperature), possibly in place; returns the sum. `out` may be
  // nullptr. REQUIRES: no NaN, max finite.
  double (*exp_sum)(const float* x, int64_t n, float max, float inv_temperature, float* out);
  void (*adapter_shrink)(const AdapterShrinkArgs& args);
  void (*adapter_expand)(const AdapterExpandArgs& args);
  void (*sum_parts)(const SumPartsArgs& args);
  void (*multiply)(const float* a, const float* b, int64_t n, float* out);  // out = a * b
  void (*conv)(const ConvRowArgs& args);
};

}  // namespace heddle::kernels::cpu
