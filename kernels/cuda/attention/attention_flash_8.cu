// The kernels of attention_flash.cuh and attention_decode.cuh for caches of 8 bits.
#include "kernels/cuda/attention/attention_decode.cuh"

namespace heddle::kernels::cuda {

Error LaunchAttentionFlash8(const AttentionParams& params, Stream stream) {
  return params.args.cache.dtype == DType::kInt8 ? decode::LaunchType<Int8>(params, stream)
                                                 : decode::LaunchType<Float8>(params, stream);
}

}  // namespace heddle::kernels::cuda
