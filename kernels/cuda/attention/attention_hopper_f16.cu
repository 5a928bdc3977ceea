// The kernels of attention_hopper.cuh for caches of F16.
#include "kernels/cuda/attention/attention_hopper.cuh"

namespace heddle::kernels::cuda {

Error LaunchAttentionHopperF16(const HopperAttentionParams& params, int blocks, Stream stream) {
  return hopper::LaunchType<Half>(params, blocks, stream);
}

}  // namespace heddle::kernels::cuda
