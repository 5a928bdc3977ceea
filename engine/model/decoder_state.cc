// The decoder's layers with state in place of keys and values.
#include "engine/model/decoder.h"

namespace heddle::engine {
namespace {

using kernels::Tensor;

}  // namespace

void Decoder::Convolve(kernels::Ops& ops, int32_t layer, const BlockInput& in, int32_t n_tokens,
                       const KvStorage& cache) {
  const ConvSpec& conv = spec_.layers[layer].attention.conv;
  const LayerWeights& weights = weights_.layers[layer];
  const Tensor bcx = View(*qkv_, n_tokens, 3 * conv.channels);
  const Tensor out = View(*attended_, n_tokens, conv.channels);
  ops.Linear({.x = in.x,
              .weight = weights.qkv.matrix.get(),
              .bias = weights.qkv.bias.data(),
              .out = bcx,
              .adapters = Adapters(layer, AdapterSite::kQkv),
              .norm = in.norm});
  ops.ShortConv({.bcx = bcx,
                 .weight = weights.conv.data(),
                 .bias = weights.conv_bias.data(),
                 .taps = conv.taps,
                 .cache = cache.layer(first_kv_layer_ + layer),
                 .out = out});
  AddToStream(ops, layer, AdapterSite::kOut, out);
}

}  // namespace heddle::engine
