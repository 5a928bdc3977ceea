// See attention_flash.cuh. Caches of 8 bits.
#include "kernels/cuda/attention/attention_flash.cuh"

namespace heddle::kernels::cuda {

Error LaunchAttentionFlash8(const AttentionParams& params, Stream stream) {
  return params.args.cache.dtype == DType::kInt8 ? flash::LaunchType<Int8>(params, stream)
                                                 : flash::LaunchType<Float8>(params, stream);
}

}  // namespace heddle::kernels::cuda
