// Plans memory: from a model's dimensions and the machine's memory to the limits that the executor
// is built with. No other code does so; `heddle inspect` prints the result, and the loader obeys
// it.
//
// Pure arithmetic; bytes throughout.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/executor.h"
#include "engine/memory/host_memory.h"
#include "engine/memory/kv_storage.h"
#include "engine/model/model_spec.h"
#include "kernels/dtype.h"

namespace heddle::engine {

inline constexpr int32_t kUsualPageTokens = 16;
inline constexpr int32_t kMaxPageTokens = 4096;

struct CapacityOptions {
  int32_t max_context = 0;  // positions per sequence; 0: the model's, or what fits
  // A power of two; 0: kUsualPageTokens, or, for layers whose state is a snapshot, so many that the
  // keys of a page take as much as the state.
  int32_t page_tokens = 0;
  int64_t kv_bytes = 0;       // size of the KV pool; 0: chosen from the free memory
  double kv_fraction = 0.0;   // share of what the weights leave; 0: kv_bytes or automatic
  int64_t host_kv_bytes = 0;  // size of the host's tier for pages; 0: none
  // Makes all layers keep as many positions as the one with the longest window.
  bool one_kv_group = false;
  // 0, for the loader: what the device serves best (Device::preferred_step).
  int32_t max_batch_tokens = 512;
  int32_t max_batch_seqs = 256;
  int32_t logit_rows = 64;  // rows of logits held at a time, at most
  // Threads of the CPU backend, each of which has working memory; 0: a GPU; less, for the loader:
  // those of its device.
  int32_t cpu_threads = -1;
  // Memory left free for the operating system, the page cache and the front end's buffers, or for
  // what a device loads while it runs.
  int64_t reserve_bytes = int64_t{256} << 20;
  // The automatic pool's share of what the weights, the workspace and the reserve leave.
  double automatic_share = 0.9;
  kernels::DType kv_dtype = kernels::DType::kF16;
  kernels::DType activation_dtype = kernels::DType::kF32;
  // Largest rank of LoRA adapters, at most kernels::kMaxAdapterRank; 0: the executor runs none.
  int32_t adapter_max_rank = 0;
  kernels::DType adapter_dtype = kernels::DType::kBF16;
  // A drafter beside the model (draft_network.h).
  std::vector<KvLayer> draft_kv_layers;
  int64_t draft_weight_bytes = 0;
  int64_t draft_workspace_bytes = 0;
  int32_t max_ahead_tokens = 0;     // ExecutorLimits::max_ahead_tokens; 0: no drafter
  int32_t rows_beyond_guesses = 0;  // ExecutorLimits::rows_beyond_guesses
  bool drafter_reads_features = false;
  std::vector<int32_t> drafter_features;  // ExecutorLimits::drafter_features
  // The parts of ranks of this machine that share the model, the head's first; empty: one has all.
  // All of them hold each page.
  std::vector<ModelSpec> rank_specs;
  // The parts of all ranks, where some are on other machines; empty: those of this machine are all.
  std::vector<ModelSpec> group_specs;
  bool receives_messages = true;  // into it, from ranks of group_specs not in rank_specs
};

struct Capacity {
  ExecutorLimits limits;
  KvLayout kv_layout;  // which layers share a page
  // The drafter's layers leave the groups of the model's as they are without it, so that ranks need
  // not know it.
  bool drafter_keeps_groups = true;
  int32_t logit_rows = 0;  // held at a time: one per sequence, up to the limit
  int64_t weight_bytes = 0;
  int64_t workspace_bytes = 0;     // activations and logits
  int64_t kv_bytes_per_token = 0;  // all layers, K and V
  int64_t page_bytes = 0;          // for the layers of one group, on all ranks
  // The same of each rank, [ranks], those of other machines included. Where ranks share the model
  // and run adapters, a page has room for adapters also on a rank with few heads or none: at least
  // half of the largest one's.
  std::vector<int64_t> rank_page_bytes;
  int64_t kv_bytes = 0;          // the whole pool
  int64_t available_bytes = 0;   // free memory before loading
  bool context_reduced = false;  // the pool is smaller than one context of the model

  // Positions that the pool holds in all layers; more of contexts longer than some layers' windows.
  int64_t pool_tokens() const {
    return int64_t{limits.num_pages} / kv_layout.n_kv_groups() * limits.page_tokens;
  }
  // Bytes of state in the pool, for one sequence that decodes: in each group of such layers a page,
  // and the one before while its window reaches there.
  int64_t state_bytes() const { return int64_t{2} * kv_layout.n_state_groups * page_bytes; }
  PageRule page_rule() const {
    return {.page_tokens = limits.page_tokens,
            .window_grain = limits.window_grain,
            .step_tokens = limits.max_batch_tokens,
            .state_groups = limits.state_groups};
  }
};

// Holdings of one rank; a model that nobody shares has one rank.
struct RankMemory {
  int64_t weight_bytes = 0;
  int64_t kv_bytes_per_token = 0;
  int64_t page_bytes = 0;
  int64_t kv_bytes = 0;  // its part of the whole pool
};

// RESOURCE_EXHAUSTED if the weights and a pool for one sequence of the requested context do not
// fit; it names the bytes of each part and the flag that would help. INVALID_ARGUMENT for an option
// out of range.
absl::StatusOr<Capacity> PlanCapacity(const ModelSpec& spec, int64_t weight_bytes,
                                      const HostMemory& memory, const CapacityOptions& options);

// Floats of a page of a recurrent layer. REQUIRES: the reader of the model has checked their
// number.
int32_t SnapshotFloats(const kernels::RecurrenceShape& shape);

// The shape and window of each layer's cache.
std::vector<KvLayer> KvLayers(const ModelSpec& spec);

// The pages of one rank, in the layout that all ranks share.
KvLayout KvLayoutOfRank(const KvLayout& layout, const ModelSpec& rank, bool is_head);

// One sentence: the tokens that the pool holds, how many users of which context, and the flag that
// changes it.
std::string DescribeCapacity(const Capacity& capacity);

}  // namespace heddle::engine
