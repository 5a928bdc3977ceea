#include "engine/model/conv_taps.h"

#include <algorithm>

namespace heddle::engine {

std::vector<float> TapsOf(const CheckpointTensor& tensor, int64_t taps,
                          std::span<const Range> channels) {
  int64_t end = 0;
  for (const Range& range : channels) end = std::max(end, range.end());
  std::vector<float> stored(static_cast<size_t>(end * taps));
  kernels::DequantizeRow(*tensor.dtype, tensor.data.data(), end * taps, stored.data());
  std::vector<float> values;
  for (int64_t tap = 0; tap < taps; ++tap) {
    for (const Range& range : channels) {
      for (int64_t c = range.first; c < range.end(); ++c) {
        values.push_back(stored[static_cast<size_t>(c * taps + tap)]);
      }
    }
  }
  return values;
}

}  // namespace heddle::engine
