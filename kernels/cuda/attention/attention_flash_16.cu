// The kernels of attention_flash.cuh and attention_decode.cuh for caches of 16-bit floats, and the
// choice between the sources.
#include "kernels/cuda/attention/attention_decode.cuh"

namespace heddle::kernels::cuda {

Error LaunchAttentionFlash16(const AttentionParams& params, Stream stream) {
  return params.args.cache.dtype == DType::kF16 ? decode::LaunchType<Half>(params, stream)
                                                : decode::LaunchType<BFloat16>(params, stream);
}

Error LaunchAttentionFlash(const AttentionParams& params, Stream stream) {
  return KvElementBytes(params.args.cache.dtype) == 1 ? LaunchAttentionFlash8(params, stream)
                                                      : LaunchAttentionFlash16(params, stream);
}

}  // namespace heddle::kernels::cuda
