// See attention_latent.cuh.
#include "kernels/cuda/attention/attention_latent.cuh"

namespace heddle::kernels::cuda {

Error LaunchAttentionLatent(const AttentionParams& params, Stream stream) {
  if (params.n_tiles == 0) return kSuccess;
  return params.args.cache.dtype == DType::kF16 ? latent::LaunchType<Half>(params, stream)
                                                : latent::LaunchType<BFloat16>(params, stream);
}

}  // namespace heddle::kernels::cuda
