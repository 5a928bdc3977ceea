// The interface of an instruction set's kernels that score positions for attention: plain types and
// function pointers only.
#pragma once

#include <cstdint>

#include "kernels/cpu/row_table.h"

namespace heddle::kernels::cpu {

// Keys that are scored together.
constexpr int32_t kScoredKeys = 32;

struct TransposeKeysArgs {
  KvType type;
  const void* const* keys;    // [kScoredKeys] rows of `dim`; those behind the last one repeat it
  const void* const* scales;  // [kScoredKeys] F32 at any alignment, of kInt8 only
  int32_t dim;
  float* out;  // [dim rounded up to a multiple of 16, kScoredKeys]
};

struct ScoreKeysArgs {
  const float* keys;     // from transpose_keys
  const float* queries;  // [n_heads, dim]
  const float* weights;  // [n_heads]
  int32_t n_heads;
  int32_t dim;
  float* out;  // [kScoredKeys] sums over heads of weight * max(0, q . k), in order of the heads
};

struct SelectionKernels {
  void (*transpose_keys)(const TransposeKeysArgs& args);
  void (*score_keys)(const ScoreKeysArgs& args);
};

extern const SelectionKernels kSelectionPortable;
#if defined(__x86_64__)
extern const SelectionKernels kSelectionAvx2;
extern const SelectionKernels kSelectionAvx512;
#endif

}  // namespace heddle::kernels::cpu
