#include "engine/model/conv_taps.h"

namespace heddle::engine {

std::vector<float> TapsOf(const CheckpointTensor& tensor, int64_t taps, Range channels) {
  std::vector<float> stored(static_cast<size_t>(channels.end() * taps));
  kernels::DequantizeRow(*tensor.dtype, tensor.data.data(), channels.end() * taps, stored.data());
  std::vector<float> values;
  values.reserve(static_cast<size_t>(channels.count * taps));
  for (int64_t tap = 0; tap < taps; ++tap) {
    for (int64_t c = channels.first; c < channels.end(); ++c) {
      values.push_back(stored[static_cast<size_t>(c * taps + tap)]);
    }
  }
  return values;
}

}  // namespace heddle::engine
