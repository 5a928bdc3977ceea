// Heads of 257 to 512 columns with values of their own: see attention_latent.cuh.
#include "kernels/cuda/attention/attention_latent.cuh"

namespace heddle::kernels::cuda {

Error LaunchAttentionWideHeads(const AttentionParams& params, Stream stream) {
  return latent::LaunchDim<kWideHeadDim, /*kOwn=*/true>(params, stream);
}

}  // namespace heddle::kernels::cuda
