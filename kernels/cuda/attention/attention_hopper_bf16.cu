// The kernels of attention_hopper.cuh for caches of BF16, and the code that both sources share.
#include "kernels/cuda/attention/attention_hopper.cuh"

namespace heddle::kernels::cuda {

Error LaunchAttentionHopperBF16(const HopperAttentionParams& params, int blocks, Stream stream) {
  return hopper::LaunchType<BFloat16>(params, blocks, stream);
}

Error LaunchAttentionHopper(const AttentionParams& params, int32_t num_multiprocessors,
                            Stream stream) {
  const KvCacheView& cache = params.args.cache;
  const int64_t items = static_cast<int64_t>(params.n_tiles) * cache.n_kv_heads;
  if (items == 0) return kSuccess;
  HopperAttentionParams own = {.attention = params, .keys = {}, .values = {}};
  TiledMatrix rows = {.data = cache.keys,
                      .rows = cache.rows(),
                      .cols = cache.head_dim,
                      .box_rows = cache.page_tokens};
  Error error = EncodeTensorMap(rows, &own.keys);
  rows.data = cache.values;
  if (error == kSuccess) error = EncodeTensorMap(rows, &own.values);
  if (error != kSuccess) return error;
  const int blocks = items < num_multiprocessors ? static_cast<int>(items) : num_multiprocessors;
  return cache.dtype == DType::kF16 ? LaunchAttentionHopperF16(own, blocks, stream)
                                    : LaunchAttentionHopperBF16(own, blocks, stream);
}

}  // namespace heddle::kernels::cuda
