// A step's batch where kernels read it. Includes neither CUDA nor Abseil.
#pragma once

#include <cstdint>

namespace heddle::kernels::cuda {

// The step's batch in device memory; see kernels/batch.h.
struct DeviceBatch {
  const int32_t* token_ids = nullptr;
  const int32_t* draw_of_row = nullptr;  // [n_tokens], or nullptr: token_ids has all
  const int32_t* drawn = nullptr;        // by the step before: what draw_of_row names
  const int32_t* positions = nullptr;
  const int32_t* token_types = nullptr;  // [n_tokens], or nullptr: all are 0
  const int64_t* kv_slot = nullptr;
  const int32_t* q_begin = nullptr;
  const int32_t* span_begin = nullptr;
  const int32_t* span_page = nullptr;
  const int32_t* span_first = nullptr;   // [n_spans] position of its first key in the sequence
  const int32_t* span_tokens = nullptr;  // [n_spans]
  const int32_t* context_len = nullptr;
  const int32_t* logit_rows = nullptr;
  const uint64_t* tree_mask = nullptr;  // [n_tokens], or nullptr: no trees
  int32_t n_tokens = 0;
  int32_t n_seqs = 0;
  int32_t n_logit_rows = 0;
};

}  // namespace heddle::kernels::cuda
