// The weights of a short convolution, which files have channel by channel and kernels tap by tap.
// Pure function.
#pragma once

#include <vector>

#include "engine/files/checkpoint.h"
#include "engine/parallel/shard.h"

namespace heddle::engine {

// [taps, channels.count] of a tensor [all channels, (1,) taps]. REQUIRES: the tensor is validated.
std::vector<float> TapsOf(const CheckpointTensor& tensor, int64_t taps, Range channels);

}  // namespace heddle::engine
