// The attention op of the CPU backend: splits a batch into tiles of queries that share a KV head
// and, if there are fewer tiles than threads can use, also splits the context into chunks.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/batch.h"
#include "kernels/cpu/attention/chosen_rows.h"
#include "kernels/cpu/attention/context_runs.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops.h"

namespace heddle::kernels::cpu {

// REQUIRES: a type of the KV cache.
KvType KvTypeOf(DType dtype);

// Working memory that is kept between calls.
struct AttentionScratch {
  std::vector<Scratch> threads;        // per thread: a tile's operands
  Scratch parts;                       // partial results if the context is split
  std::vector<int64_t> tile_begin;     // [n_seqs + 1]
  std::vector<int32_t> span_position;  // [n_spans] first place of each, in its sequence
  ContextRuns runs;
  ChosenRows chosen;
};

void Attention(const HostBatch& batch, const AttentionArgs& args, const AttentionKernels& kernels,
               ThreadPool& pool, AttentionScratch& scratch);

}  // namespace heddle::kernels::cpu
