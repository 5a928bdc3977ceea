// The kernel of attention_hopper.cuh for keys and values made of latents.
#include "kernels/cuda/attention/attention_hopper.cuh"

namespace heddle::kernels::cuda {

Error LaunchAttentionExpanded(const AttentionParams& params, const ExpandedKeys& expanded,
                              int32_t num_multiprocessors, Stream stream) {
  const KvCacheView& cache = params.args.cache;
  const int64_t items = static_cast<int64_t>(params.n_tiles) * cache.n_kv_heads;
  if (items == 0) return kSuccess;
  HopperAttentionParams own = {.attention = params, .keys = {}, .values = {}};
  TiledMatrix rows = {.data = expanded.keys,
                      .rows = int64_t{expanded.n_pages} * cache.page_tokens,
                      .cols = int64_t{cache.n_kv_heads} * kExpandedKeyDim,
                      .box_rows = cache.page_tokens};
  Error error = EncodeTensorMap(rows, &own.keys);
  rows.data = expanded.values;
  rows.cols = int64_t{cache.n_kv_heads} * kExpandedValueDim;
  if (error == kSuccess) error = EncodeTensorMap(rows, &own.values);
  if (error != kSuccess) return error;
  const int blocks = items < num_multiprocessors ? static_cast<int>(items) : num_multiprocessors;
  return hopper::LaunchDim<BFloat16, kExpandedKeyDim, false>(own, blocks, stream);
}

}  // namespace heddle::kernels::cuda
