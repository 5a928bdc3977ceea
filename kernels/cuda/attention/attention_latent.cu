// See attention_latent.cuh.
#include "kernels/cuda/attention/attention_latent.cuh"

namespace heddle::kernels::cuda {

Error LaunchAttentionLatent(const AttentionParams& params, Stream stream) {
  return latent::LaunchDim<kMaxAttentionHeadDim, /*kOwn=*/false>(params, stream);
}

}  // namespace heddle::kernels::cuda
