// See attention_flash.cuh. Caches of 16-bit floats, and the choice between the sources.
#include "kernels/cuda/attention/attention_flash.cuh"

namespace heddle::kernels::cuda {

Error LaunchAttentionFlash16(const AttentionParams& params, Stream stream) {
  return params.args.cache.dtype == DType::kF16 ? flash::LaunchType<Half>(params, stream)
                                                : flash::LaunchType<BFloat16>(params, stream);
}

Error LaunchAttentionFlash(const AttentionParams& params, Stream stream) {
  return KvElementBytes(params.args.cache.dtype) == 1 ? LaunchAttentionFlash8(params, stream)
                                                      : LaunchAttentionFlash16(params, stream);
}

}  // namespace heddle::kernels::cuda
