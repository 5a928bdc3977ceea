// The interface of an instruction set's attention kernels: plain types and function pointers only.
#pragma once

#include <cstdint>

#include "kernels/cpu/row_table.h"
#include "kernels/cpu/tile_registers.h"

namespace heddle::kernels::cpu {

// One run of consecutive positions in one page.
struct KeyRun {
  const void* keys;          // [num_tokens, head_dim] of the KV head
  const void* values;        // the same
  const void* key_scales;    // [num_tokens] F32 at any alignment, of kInt8 only
  const void* value_scales;  // the same
  int32_t num_tokens;
};

// Queries [num_queries] that read one KV head, over the positions [begin, end) of the context,
// which are within one chunk of kChunkTokens. Query q sees [lower[q], upper[q]) of them.
// Accumulates into max, sum and acc, which start at -infinity, 0 and 0.
struct AttendArgs {
  KvType type;
  const KeyRun* runs;  // consecutive, the first starting at position `begin`
  int32_t begin;       // multiple of kBlockTokens
  int32_t end;
  // The positions that the thread will probably read next, which are prefetched while the last
  // blocks here are computed. Same form as `runs`; ahead_tokens may be 0.
  const KeyRun* ahead;
  int32_t ahead_tokens;
  int32_t head_dim;
  int32_t padded_dim;           // head_dim rounded up to a multiple of kMaxLanes
  int32_t num_queries;          // <= kMaxQueries
  const float* const* queries;  // [num_queries] rows of head_dim
  float scale;                  // factor of the queries
  const int32_t* lower;         // ascending with the query, as `upper`
  const int32_t* upper;
  const uint64_t* tree;  // [num_queries] or nullptr: query q sees position tree_begin + j only if
                         // bit j of tree[q] is set
  int32_t tree_begin;    // positions before it are not restricted
  float softcap;
  const float* const* bias;  // [num_queries] or nullptr: bias[q][p] is added to query q's score at
                             // position p, in whole blocks
  float* max;                // [num_queries]
  float* sum;                // [num_queries]
  float* acc;  // [num_queries rounded up to a multiple of 16, padded_dim]; the rest is undefined
  float* scratch;            // AttendScratchFloats(padded_dim)
  TileRegisters* registers;  // that the kernel may set up
};

// Keys are handled in blocks that start at multiples of 32 positions of the context, and partial
// results in chunks of 512. They are fixed by position, so that neither the batch, nor the chunking
// of a prompt, nor the pages, nor the number of threads changes a bit of the result.
constexpr int32_t kBlockTokens = 32;
constexpr int32_t kChunkTokens = 512;
constexpr int32_t kMaxQueries = 64;
constexpr int32_t kMaxLanes = 16;

// Blocks that may be prefetched before they are computed.
constexpr int32_t kMaxBlocksAhead = 1;

constexpr int64_t AttendScratchFloats(int64_t padded_dim) {
  return padded_dim * (3 * kBlockTokens + kMaxQueries) + 2 * kMaxQueries * kBlockTokens;
}

struct AttentionKernels {
  void (*attend)(const AttendArgs& args);
  // Merges (max, sum, acc) of a chunk into those of the context before it.
  void (*merge)(float part_max, float part_sum, const float* part_acc, int32_t n, float* max,
                float* sum, float* acc);
  // out = acc / sum, and *lse = log(sum) + max unless it is nullptr, including `sink` (or
  // -infinity).
  void (*finish)(float max, float sum, const float* acc, int32_t n, float sink, float* out,
                 float* lse);
  // Releases AttendArgs::registers; nullptr if `attend` sets none up.
  void (*release_tiles)() = nullptr;
  // Nanoseconds of one query, one position, 64 dimensions: to decide how many threads to wake.
  double ns_per_score = 5;
};

// Replaces the kernel if the processor multiplies BF16 by tiles.
struct TileAttention {
  void (*attend)(const AttendArgs& args);
  void (*release)();
};

}  // namespace heddle::kernels::cpu
