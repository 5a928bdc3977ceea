// The interface of an instruction set's kernels for RWKV-7's time mix; see kernel_table.h for what
// such sources may include, and kernels/wkv.h for the arithmetic.
#pragma once

#include <cstdint>

namespace heddle::kernels::cpu {

// One head of a row, [dim] each.
struct WkvMixArgs {
  const float* k;
  const float* v;
  const float* w;
  const float* a;
  const float* m;            // nullptr: the first layer
  const float* first_value;  // read where m is there
  const float* key_scale;
  const float* key_mix;
  int32_t dim;
  float* decay;
  float* key;
  float* value;
  float* unit;  // kk
  float* gain;  // kk * a
};

// A row as S takes it in, and its output: [dim] each.
struct WkvRow {
  const float* decay;
  const float* key;
  const float* value;
  const float* unit;
  const float* gain;
  const float* r;  // nullptr: the row's output is not wanted
  float* out;
};

struct WkvStepArgs {
  const WkvRow* rows;  // [n], one after the other
  int32_t n;
  int32_t dim;
  float* state;  // [dim, dim], in place
};

struct WkvFinishArgs {
  const float* r;
  const float* key;
  const float* value;
  const float* bonus;
  const float* norm;  // nullptr: none, and then norm_bias is not read
  const float* norm_bias;
  const float* gate;  // nullptr: none
  float eps;
  int32_t dim;
  float* row;  // o, in place
};

struct WkvKernels {
  void (*mix)(const WkvMixArgs& args);
  void (*step)(const WkvStepArgs& args);
  void (*finish)(const WkvFinishArgs& args);
  // out[i] = x[i] + mix[i] * (before[i] - x[i]); before may be nullptr: zeros.
  void (*shift)(const float* x, const float* before, const float* mix, int64_t n, float* out);
  void (*tanh)(float* x, int64_t n);
  void (*sigmoid)(float* x, int64_t n);
};

extern const WkvKernels kWkvPortable;
#if defined(__x86_64__)
extern const WkvKernels kWkvAvx2;
extern const WkvKernels kWkvAvx512;
#endif

}  // namespace heddle::kernels::cpu
