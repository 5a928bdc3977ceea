// Layout of the paged KV cache of one layer, as kernels see it. Storage belongs to engine/memory.
//
// Keys and values are two arrays of the same shape [num_pages, n_kv_heads, page_tokens, head_dim]:
// for one head the positions of a page are contiguous, so that attention streams whole pages. The
// arrays of one layer need not be adjacent to those of the next.
// Source: Kwon et al., "PagedAttention", SOSP 2023.
#pragma once

#include <cstdint>

#include "kernels/dtype.h"

namespace heddle::kernels {

// Attention sums over a context in parts whose borders lie at multiples of this from its first
// span. A context that loses whole multiples of it at the front, behind every row's window, gives
// the same bits.
inline constexpr int32_t kContextGrain = 512;

struct KvCacheView {
  void* keys = nullptr;
  void* values = nullptr;     // == keys: the keys are the values too (latent attention)
  DType dtype = DType::kF16;  // kF32, kF16 or kBF16
  int32_t num_pages = 0;
  int32_t page_tokens = 0;  // a power of two
  int32_t n_kv_heads = 0;
  int32_t head_dim = 0;

  constexpr int64_t page_elements() const {
    return static_cast<int64_t>(n_kv_heads) * page_tokens * head_dim;
  }
};

}  // namespace heddle::kernels
