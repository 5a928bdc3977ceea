// The kernels of attention_hopper.cuh for caches of F8: scores of codes.
#include "kernels/cuda/attention/attention_hopper.cuh"
#include "kernels/cuda/attention/attention_hopper_f8.h"

namespace heddle::kernels::cuda {

Error LaunchAttentionHopperF8(const AttentionParams& params, const KvCacheView& copy,
                              const int32_t* value_page, int32_t num_multiprocessors,
                              Stream stream) {
  const KvCacheView& cache = params.args.cache;
  const int64_t items = static_cast<int64_t>(params.n_tiles) * cache.n_kv_heads;
  if (items == 0) return kSuccess;
  HopperAttentionParams own = {
      .attention = params, .keys = {}, .values = {}, .value_page = value_page};
  Error error = EncodeTensorMap({.data = cache.keys,
                                 .rows = cache.rows(),
                                 .cols = cache.head_dim,
                                 .box_rows = cache.page_tokens,
                                 .element_bytes = 1},
                                &own.keys);
  if (error != kSuccess) return error;
  error = EncodeTensorMap({.data = copy.values,
                           .rows = copy.rows(),
                           .cols = copy.head_dim,
                           .box_rows = copy.page_tokens},
                          &own.values);
  if (error != kSuccess) return error;
  const int blocks = items < num_multiprocessors ? static_cast<int>(items) : num_multiprocessors;
  return hopper::LaunchStep<Float8, 128>(own, blocks, stream);
}

}  // namespace heddle::kernels::cuda
