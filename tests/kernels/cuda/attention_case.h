// A case of attention on the emulated CUDA device, compared with the reference.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/device.h"
#include "tests/kernels/batch_edits.h"
#include "tests/kernels/testing.h"

namespace heddle::kernels::test {

struct AttentionCase {
  BatchSpec batch;
  int32_t n_heads = 4;
  int32_t n_kv_heads = 2;
  int32_t head_dim = 64;
  DType cache = DType::kF16;
  int32_t window = 0;
  bool in_chunks = false;  // of `window`
  int32_t passed = 0;      // positions that are missing in front of every context
  bool both_ways = false;
  bool bias = false;  // of distances, for contexts of up to 256
  float softcap = 0;
  bool sinks = false;
  int64_t pad = 0;
  int32_t compute_major = 9;  // prompts on warpgroups; 8: on warps
  bool latent = false;        // the keys are the values
  bool half_keys = false;
  bool lse = true;                  // the log-sum-exp is asked for and compared
  bool poisoned = false;            // unused positions of the cache are NaN
  bool rounds_keys = false;         // keys are rounded to BF16 for the matrix instruction
  bool codes_queries = false;       // queries of long chunks are rounded to E4M3 for scores
  std::vector<int32_t> trees = {};  // sequences whose rows are trees
  std::vector<SharedPages> shared = {};
  std::vector<int32_t> pieces = {};  // sequences whose contexts are made of pieces
  bool turns = false;                // for which queries are rotated further
  RopeLayout layout = RopeLayout::kHalf;
};

// The case's batch, with its trees and shared pages.
TestBatch BatchOf(const AttentionCase& c, uint32_t seed = 1);

// Attention of random queries over a random cache, both of the seed, in `act`; fails the test
// unless output and log-sum-exp are the reference's but for rounding. `groups`: the batch's further
// layer groups, and `group` the one that the cache is of.
void CheckAttention(const AttentionCase& c, DType act, uint32_t seed = 1,
                    int64_t workspace_bytes = int64_t{4} << 20);
void CheckAttentionOf(Device& device, const AttentionCase& c, const HostBatch& batch,
                      int32_t num_pages, int32_t group, uint32_t seed = 1);

}  // namespace heddle::kernels::test
