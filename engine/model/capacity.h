// What fits: from a model's dimensions and the machine's memory to the limits the executor is built
// with. The one place where memory is planned; `heddle inspect` prints it, the loader obeys it.
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

struct CapacityOptions {
  int32_t max_context = 0;    // positions per sequence; 0: the model's, or what fits
  int32_t page_tokens = 16;   // a power of two
  int64_t kv_bytes = 0;       // of the KV pool; 0: chosen from the free memory
  double kv_fraction = 0.0;   // of the memory left after the weights; 0: kv_bytes or automatic
  int64_t host_kv_bytes = 0;  // of the host's tier for pages; 0: none
  // All layers keep what the furthest-seeing does, as if none had a window of its own.
  bool one_kv_group = false;
  int32_t max_batch_tokens = 512;
  int32_t max_batch_seqs = 256;
  int32_t logit_rows = 64;  // held at a time, at most
  // Left free: for the operating system, the page cache and the front end's buffers, or for what a
  // device loads while it runs.
  int64_t reserve_bytes = int64_t{256} << 20;
  // Of what is left beside the reserve, the automatic pool takes this much.
  double automatic_share = 0.9;
  kernels::DType kv_dtype = kernels::DType::kF16;
  kernels::DType activation_dtype = kernels::DType::kF32;
};

struct Capacity {
  ExecutorLimits limits;
  KvLayout kv_layout;      // which layers share a page
  int32_t logit_rows = 0;  // held at a time: those of all sequences, if that is not too many
  int64_t weight_bytes = 0;
  int64_t workspace_bytes = 0;     // activations and logits
  int64_t kv_bytes_per_token = 0;  // all layers, K and V
  int64_t page_bytes = 0;          // of the layers of one group
  int64_t kv_bytes = 0;            // the whole pool
  int64_t available_bytes = 0;     // in this machine, before loading
  bool context_reduced = false;    // the pool is smaller than the model's own context

  // Positions that the pool holds in all layers; of contexts longer than some layers' windows more.
  int64_t pool_tokens() const {
    return int64_t{limits.num_pages} / kv_layout.n_groups() * limits.page_tokens;
  }
  PageRule page_rule() const {
    return {.page_tokens = limits.page_tokens,
            .window_grain = limits.window_grain,
            .step_tokens = limits.max_batch_tokens};
  }
};

// RESOURCE_EXHAUSTED with the bytes of each part and the flag that would help, if the weights and
// a pool for one sequence of the asked-for context do not fit. INVALID_ARGUMENT for an option out
// of range.
absl::StatusOr<Capacity> PlanCapacity(const ModelSpec& spec, int64_t weight_bytes,
                                      const HostMemory& memory, const CapacityOptions& options);

// What each layer keeps per position.
std::vector<KvLayer> KvLayers(const ModelSpec& spec);

// "1.6 GiB", "512 KiB": powers of 1024, for people.
std::string FormatBytes(int64_t bytes);

// One sentence: tokens the pool holds, users of which context, and the flag that would change it.
std::string DescribeCapacity(const Capacity& capacity);

}  // namespace heddle::engine
