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
  void*
      out;  // [dim rounded up to a multiple of 16, kScoredKeys] F32, or half as much: pairs of BF16
};

// Numbers of 32 bits that one head's query takes as pairs of BF16.
constexpr int32_t QueryPairs(int32_t dim) { return (dim + 1) / 2; }

struct PackQueriesArgs {
  KvType type;
  const float* queries;  // [n_heads, dim]
  int32_t n_heads;
  int32_t dim;
  int32_t* out;  // [n_heads, QueryPairs(dim)]
};

struct ScoreKeysArgs {
  KvType type;
  const void* keys;      // from transpose_keys
  const void* queries;   // from pack_queries
  const float* weights;  // [n_heads]
  int32_t n_heads;
  int32_t dim;
  float* out;  // [kScoredKeys] sums over heads of weight * max(0, q . k), in order of the heads
};

struct SelectionKernels {
  void (*transpose_keys)(const TransposeKeysArgs& args);
  // Returns what score_keys reads: args.queries themselves, or args.out, where a level multiplies
  // keys of this type as pairs of BF16.
  const void* (*pack_queries)(const PackQueriesArgs& args);
  void (*score_keys)(const ScoreKeysArgs& args);
};

extern const SelectionKernels kSelectionPortable;
#if defined(__x86_64__)
extern const SelectionKernels kSelectionAvx2;
extern const SelectionKernels kSelectionAvx512;
extern const SelectionKernels kSelectionAvx512Bf16;
#endif

}  // namespace heddle::kernels::cpu
