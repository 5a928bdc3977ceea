// Attention of prompt chunks on sm_90a whose scores are products of 8 bits: keys straight from the
// pages of a cache of F8, queries as E4M3 codes with a scale for each row and head, which the
// kernel makes when it loads them, with the tensor core's own sums; and values from copies of their
// pages in F16 (attention_widen.cu), with weights in F16. A query's element so errs by 2^-4 of
// itself, or by 2^-10 / 448 of its row's largest one, whichever is more. Rules for all launchers
// are in runtime/stream.h.
#pragma once

#include "kernels/cuda/attention/attention_params.h"

namespace heddle::kernels::cuda {

// Whether LaunchAttentionHopperF8 can take what kHopperWide can (attention_choice.h).
inline bool HopperF8Can(const KvCacheView& cache) {
  return cache.dtype == DType::kF8E4M3 && cache.head_dim == 128;
}

// Prefill tiles of kHopperTileRows. params.args.cache and batch.span_page are the cache's own;
// `copy` has its values as F16, on adjacent pages, and no keys: page value_page[i] those of span i.
Error LaunchAttentionHopperF8(const AttentionParams& params, const KvCacheView& copy,
                              const int32_t* value_page, int32_t num_multiprocessors,
                              Stream stream);

}  // namespace heddle::kernels::cuda
