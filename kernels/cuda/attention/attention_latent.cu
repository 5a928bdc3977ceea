// See attention_latent.cuh.
#include "kernels/cuda/attention/attention_latent.cuh"

namespace heddle::kernels::cuda {

Error LaunchAttentionLatent(const AttentionParams& params, Stream stream) {
  if (params.n_tiles == 0) return kSuccess;
  switch (params.args.cache.dtype) {
    case DType::kF16:
      return latent::LaunchType<Half>(params, stream);
    case DType::kF8E4M3:
      return latent::LaunchType<Float8>(params, stream);
    case DType::kInt8:
      return latent::LaunchType<Int8>(params, stream);
    default:
      return latent::LaunchType<BFloat16>(params, stream);
  }
}

}  // namespace heddle::kernels::cuda
